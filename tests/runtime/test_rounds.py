"""The round loop and its record: it goes on from any state with the same bits, and the numbers are what they say."""

import json
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.tiny_run import AlteredFleet, Answer, RememberingFleet, play, tiny_parts
from torch import Tensor

from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.types import ClientUpdate, Missing, Outcome, Scores, ServerState
from fedfew.runs.session import one_thread
from fedfew.runtime.channel import LONGEST, Channel
from fedfew.runtime.exchange import Answers
from fedfew.runtime.record import describe, left_out
from fedfew.runtime.rounds import Clock, run_rounds


@pytest.mark.parametrize(
    "settings",
    [
        {"server__schedule": "plateau", "server__patience": 1, "client__schedule": "plateau", "client__patience": 1},
        {"client__schedule": "cosine", "method__anchor": "previous"},
        {"method__name": "fedavg", "method__order": "after"},
        {"availability__dropout": 0.5, "availability__kind": "zipf"},
    ],
)
def test_every_state_can_be_gone_on_from(settings: dict[str, Any]) -> None:
    """The server trains ahead while ω is scored; a resume trains anew and must get the same."""
    parts, fleet = tiny_parts(rounds=6, **settings)
    whole = play(parts, fleet, 6)
    for state, record in whole[:-1]:
        with one_thread():
            rest = list(run_rounds(parts.clients, parts.algorithm, parts.server, fleet, state, 6))
        assert [later["round"] for _, later in rest] == list(range(record["round"] + 1, 7))
        assert torch.equal(rest[-1][0].omega, whole[-1][0].omega)
        assert rest[-1][0].participation == whole[-1][0].participation
        assert rest[-1][0].validation == whole[-1][0].validation
        assert {**rest[-1][1], "seconds": 0} == {**whole[-1][1], "seconds": 0}


def test_too_few_updates_skip_the_round() -> None:
    parts, fleet = tiny_parts(min_updates=3)
    two = AlteredFleet(fleet, lambda _, answers: answers[1:])
    ((state, record),) = play(parts, two, 1)
    assert record["skipped"]
    assert sorted(fault["code"] for fault in left_out(record)) == ["E410", "E418", "E418"]
    assert state.participation == {}


@pytest.mark.parametrize("fault", ["raises", "votes on images that are not there"])
def test_a_client_that_fails_costs_its_update_only(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    parts, fleet = tiny_parts()
    method = type(parts.algorithm)
    train = method.train_client

    def unlucky(self: Any, payload: Any, site: Any, rng: Any) -> Any:
        trained = train(self, payload, site, rng)
        if site.client == 2 and fault == "raises":
            raise ZeroDivisionError("nothing to divide by")
        return replace(trained, votes=torch.zeros(3, dtype=torch.int64)) if site.client == 2 else trained

    monkeypatch.setattr(method, "train_client", unlucky)
    ((_, record),) = play(parts, fleet, 1)
    (lost,) = left_out(record)
    assert 2 in record["cohort"] and (lost["client"], lost["code"]) == (2, "E408")
    line = unlucky.__code__.co_firstlineno + 3
    told = f"ZeroDivisionError: nothing to divide by (test_rounds.py:{line})"
    assert (lost["reason"] == told) == (fault == "raises")


FAILURES: dict[str, tuple[Callable[[ServerState], Any], str]] = {
    "a singular matrix": (lambda state: torch.linalg.inv(torch.zeros(2, 2)) and state, "LinAlgError: "),
    "no convergence": (lambda state: np.linalg.svd(np.full((2, 2), np.nan)) and state, "LinAlgError: "),
    "an overflow": (lambda state: math.exp(1e9) and state, "OverflowError: "),
    "NaN in the model": (lambda state: replace(state, omega=state.omega * math.nan), "ω: not finite"),
    "infinity in what a method keeps": (
        lambda state: replace(state, extra={"kept": torch.tensor(math.inf)}), "kept: not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fail", "name"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("step", ["after_clients", "before_clients"])
def test_numbers_that_cannot_be_computed_skip_the_round(
    monkeypatch: pytest.MonkeyPatch, step: str, fail: Callable[[ServerState], Any], name: str
) -> None:
    """The model stays, the record says why, and the next round goes on from the state before."""
    parts, fleet = tiny_parts(rounds=3)
    method = type(parts.algorithm)
    compute = getattr(method, step)

    def failing(self: Any, state: ServerState, *rest: Any) -> Any:
        if state.round != 1:
            return compute(self, state, *rest)
        return (fail(state), Outcome()) if step == "after_clients" else fail(state)

    monkeypatch.setattr(method, step, failing)
    (first, _), (second, record), (third, last) = play(parts, fleet, 3)
    assert record["skipped"] and name in record["failure"]
    assert torch.equal(first.omega, second.omega) and first.participation == second.participation
    assert not last["skipped"] and "failure" not in last and not torch.equal(second.omega, third.omega)


def test_a_server_that_fails_from_the_start_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, fleet = tiny_parts()
    monkeypatch.setattr(type(parts.algorithm), "warm_up", lambda *_: torch.linalg.inv(torch.zeros(2, 2)))
    with pytest.raises(FedfewError, match="E512 first round: the server's own training failed: _LinAlgError"):
        play(parts, fleet, 2)


def test_clients_that_all_send_nan_in_the_first_round_stop_the_run() -> None:
    """Such a run finished with the accuracy of chance."""
    parts, fleet = tiny_parts()

    def spoil(_: int, answers: Sequence[Any]) -> list[Answer]:
        return [replace(a, reply={"psi": a.reply["psi"] * math.nan}) for a in answers]

    spoiled = AlteredFleet(fleet, spoil)
    with pytest.raises(FedfewError, match="E512 first round: all 3 clients failed in the same way: E404 psi holds NaN"):
        play(parts, spoiled, 2)


def test_a_client_whose_training_fails_keeps_the_memory_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, fleet = tiny_parts()
    method = type(parts.algorithm)
    fleet.remember({2: {"kept": torch.ones(1)}, 1: {"kept": torch.ones(1)}})

    def forgetful(self: Any, payload: Any, site: Any, rng: Any) -> Any:
        site.memory.clear()
        if site.client == 2:
            raise RuntimeError
        return train(self, payload, site, rng)

    train = method.train_client
    monkeypatch.setattr(method, "train_client", forgetful)
    ((_, record),) = play(parts, fleet, 1)
    assert {1, 2} <= set(record["cohort"])
    assert fleet.memory().keys() == {2}


def update(client: int, psi: Tensor, examples: int, **metrics: float) -> ClientUpdate:
    return ClientUpdate(client, {"psi": psi}, examples, {name.replace("_", "/"): v for name, v in metrics.items()})


def test_the_numbers_of_a_record() -> None:
    omega, sigma = torch.zeros(2), torch.tensor([3.0, 4.0])
    trained = ServerState(4, omega, sigma)
    after = ServerState(5, torch.tensor([0.0, 2.0]), sigma)
    updates = [
        update(3, torch.tensor([0.6, 0.8]), 10, kept=4.0, right=3.0, class_0=1.0, class_1=3.0),
        update(7, torch.tensor([0.0, -2.0]), 30, kept=6.0, right=2.0, class_0=6.0, class_1=0.0),
    ]
    payloads = {k: {"omega": omega} for k in (3, 5, 6, 7)}
    answers = Answers(
        [3, 5, 6, 7],
        updates,
        [Missing(5, Refusal.NOT_FINITE, "NaN"), Missing(6, Refusal.NO_ANSWER, "late")],
        payloads,
        1000,
        800,
        classes=2,
    )
    record = describe(
        Scores(0.123456789, float("nan"), None), after, trained, answers, Outcome({7: 0.25, 3: 0.75}), {"server": 1.0}
    )
    assert record["round"] == 5
    assert record["accuracy"] == 0.123457
    assert record["loss"] is None
    assert record["validation"] is None
    assert record["coverage"] == (4 + 6) / (10 + 30)
    assert record["correct"] == (3 + 2) / (4 + 6)
    assert record["pseudo_classes"] == [7, 3]
    assert (record["bytes_up"], record["bytes_down"]) == (800, 1000)
    assert record["rejected"] == [{"client": 5, "code": "E404", "reason": "NaN"}]
    assert record["missing"] == [{"client": 6, "code": "E410", "reason": "late"}]
    assert record["weights"] == {"7": 0.25, "3": 0.75}
    assert record["norm_server"] == 5.0
    assert record["norm_step"] == 2.0
    assert record["updates"] == [
        {"client": 3, "norm": 1.0, "cosine": 1.0, "metrics": {"kept": 4.0, "right": 3.0}},
        {"client": 7, "norm": 2.0, "cosine": pytest.approx(-0.8), "metrics": {"kept": 6.0, "right": 2.0}},
    ]
    assert not record["skipped"]
    assert json.loads(json.dumps(record)) == record


def test_a_record_without_votes_or_truth() -> None:
    state = ServerState(1, torch.zeros(2), torch.zeros(2))
    silent = Answers([0], [update(0, torch.ones(2), 5)], [], {0: {"omega": torch.zeros(2)}}, 0, 0, classes=2)
    record = describe(Scores(0.5, 1.0, 0.25), state, state, silent, Outcome(), {})
    assert (record["coverage"], record["correct"], record["pseudo_classes"]) == (None, None, [])
    assert record["updates"] == [{"client": 0, "norm": 1.41421, "cosine": 0.0}]
    unknown = replace(silent, updates=[update(0, torch.ones(2), 5, kept=2.0, class_0=2.0)])
    record = describe(Scores(0.5, 1.0, 0.25), state, state, unknown, Outcome(), {})
    assert (record["coverage"], record["correct"], record["pseudo_classes"]) == (0.4, None, [2, 0])
    assert record["validation"] == 0.25


def test_bytes_are_those_of_payloads_and_replies() -> None:
    parts, fleet = tiny_parts()
    vector = 4 * parts.network.layout.size

    def drop_one(_: int, answers: list[Answer]) -> list[Answer]:
        return answers[1:]

    ((_, record),) = play(parts, AlteredFleet(RememberingFleet(fleet), drop_one), 1)
    assert record["bytes_down"] == 3 * (2 * vector + 8)  # ω and σ, and the step size
    assert record["bytes_up"] == 2 * vector


def test_the_clock_adds_up_and_starts_again() -> None:
    clock = Clock()
    for _ in range(2):
        with clock("server"):
            time.sleep(0.01)
    taken = clock.take("server", "clients")
    assert 0.02 <= taken["server"] < 1
    assert taken["clients"] == 0.0
    assert clock.take("server") == {"server": 0.0}


def test_messages_arrive_whole_and_nonsense_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    one, other = Channel(ours), Channel(theirs)
    messages: list[dict[str, Any]] = [{"text": "ü\n" * 50_000, "numbers": [1, 2.5, None]}, {}, {"kind": "x"}]
    sender = threading.Thread(target=lambda: deque(map(one.send, messages)))
    sender.start()
    assert [other.receive() for _ in messages] == messages
    sender.join()
    for line in (b"no json\n", b"[1, 2]\n", b'"text"\n'):
        ours.sendall(line)
        assert other.receive() is None
    ours.sendall(b'{"half": ')
    one.close()
    assert other.receive() is None
    with pytest.raises(BrokenPipeError):
        for _ in range(10):
            other.send({"much": "x" * 1_000_000})
    other.close()
    assert other.receive() is None
    assert LONGEST < 1 << 30
