"""Malformed replies (RELIABILITY C5, C6): each is refused by name or has no effect, whoever sends it and however it is
aggregated; the model stays finite and keeps its form, and the round goes on with the rest."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.tiny_run import TINY, AlteredFleet, Answer, RememberingFleet, play, tiny, tiny_parts
from torch import Tensor

from fedfew.aggregators import AGGREGATORS
from fedfew.config.parts import Parts, assemble, local_fleet
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, Missing, ServerState
from fedfew.runs.run import Run
from fedfew.runs.session import reopen, start
from fedfew.runtime.exchange import Answers, ask
from fedfew.runtime.record import left_out
from fedfew.runtime.rounds import count

Tamper = Callable[[ClientUpdate], ClientUpdate]


def reply(change: Callable[[Tensor], Any]) -> Tamper:
    return lambda update: replace(update, reply={"psi": change(update.reply["psi"])})


def claim(examples: Any) -> Tamper:
    return lambda update: replace(update, examples=examples)


def spoil(value: float) -> Callable[[Tensor], Tensor]:
    def change(psi: Tensor) -> Tensor:
        spoiled = psi.clone()
        spoiled[len(spoiled) // 2] = value
        return spoiled

    return change


REFUSED: dict[str, tuple[str, Tamper]] = {
    "NaN": ("E404", reply(spoil(float("nan")))),
    "infinity": ("E404", reply(spoil(float("inf")))),
    "minus infinity": ("E404", reply(spoil(float("-inf")))),
    "finite, but its norm is not": ("E406", reply(spoil(3e38))),
    "times 1e6": ("E406", reply(lambda psi: psi * 1e6)),
    "shape (1,)": ("E402", reply(lambda psi: psi[:1])),
    "one too few": ("E402", reply(lambda psi: psi[:-1])),
    "one too many": ("E405", reply(lambda psi: torch.cat([psi, psi[:1]]))),
    "a row": ("E402", reply(lambda psi: psi[None])),
    "a column": ("E402", reply(lambda psi: psi[:, None])),
    "no dimension": ("E402", reply(lambda psi: psi[0])),
    "zero size": ("E402", reply(lambda psi: psi[:0])),
    "zero size, two dimensions": ("E402", reply(lambda psi: psi[:0].reshape(0, 7))),
    "float64": ("E403", reply(lambda psi: psi.double())),
    "float16": ("E403", reply(lambda psi: psi.half())),
    "int64": ("E403", reply(lambda psi: psi.long())),
    "complex": ("E403", reply(lambda psi: psi.to(torch.complex64))),
    "sparse": ("E403", reply(lambda psi: psi.to_sparse())),
    "without memory": ("E403", reply(lambda psi: psi.to("meta"))),
    "with a gradient": ("E403", reply(lambda psi: psi.clone().requires_grad_())),
    "a list": ("E403", reply(lambda psi: psi.tolist())),
    "nothing in it": ("E403", reply(lambda psi: None)),
    "no reply": ("E401", lambda update: replace(update, reply=None)),  # type: ignore[arg-type]
    "number for a name": ("E401", lambda update: replace(update, reply={0: update.reply["psi"]})),  # type: ignore[dict-item]
    "wrong key": ("E401", lambda update: replace(update, reply={"phi": update.reply["psi"]})),
    "extra key": ("E401", lambda update: replace(update, reply={**update.reply, "more": torch.zeros(1)})),
    "missing key": ("E401", lambda update: replace(update, reply={})),
    "count -499": ("E407", claim(-499)),
    "count 1e12": ("E407", claim(10**12)),
    "count 1e12 as a float": ("E407", claim(1e12)),
    "count NaN": ("E407", claim(float("nan"))),
    "count infinite": ("E407", claim(float("inf"))),
    "count true": ("E407", claim(True)),
    "count of words": ("E407", claim("many")),
    "count missing": ("E407", claim(None)),
    "metrics missing": ("E405", lambda update: replace(update, metrics=None)),  # type: ignore[arg-type]
    "metric NaN": ("E404", lambda update: replace(update, metrics={"steps": float("nan")})),
    "half a label": ("E407", lambda update: replace(update, metrics={"kept": 0.5})),
}


FIVE = 5 / 12
"""Five clients a round: the fewest that every aggregator takes."""
Scene = tuple[RememberingFleet, ServerState, list[int]]
Alter = Callable[[int, list[Answer]], Iterable[Answer]]


@pytest.fixture(scope="module")
def honest() -> Scene:
    """A fleet whose clients train once, the state they are asked from, and who is asked."""
    parts, fleet = tiny_parts(participation=FIVE)
    begin = parts.algorithm.start(parts.network.snapshot())
    trained = parts.algorithm.warm_up(begin, parts.server, stream(1, "server", 0))
    remembering = RememberingFleet(fleet)
    return remembering, trained, ask(parts.clients, parts.algorithm, parts.server, remembering, trained).cohort


def one_round(parts: Parts, scene: Scene, alter: Alter) -> tuple[ServerState, Answers]:
    """Ask, let through what is sound, aggregate: the middle of a round."""
    fleet, trained, _ = scene
    answers = ask(parts.clients, parts.algorithm, parts.server, AlteredFleet(fleet, alter), trained)
    counted = replace(trained, participation=count(trained, answers.updates))
    after, _ = parts.algorithm.after_clients(counted, answers.updates, parts.server, stream(1, "aggregate", 0))
    assert after.omega.shape == trained.omega.shape
    assert after.omega.dtype == torch.float32
    assert torch.isfinite(after.omega).all()
    return after, answers


def at(position: int, change: Callable[[Answer], Answer]) -> Alter:
    """Change the answer that stands at one position."""
    return lambda _, answers: [change(answer) if i == position else answer for i, answer in enumerate(answers)]


def with_aggregator(name: str) -> Parts:
    config = load(TINY, {"participation": FIVE, "aggregator.name": name})
    return replace(tiny_base(), config=config)


@cache
def tiny_base() -> Parts:
    return assemble(tiny(participation=FIVE, gate__images=0))  # thousands of rounds: the screen has tests of its own


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_no_malformed_reply_has_an_effect(aggregator: str, honest: Scene) -> None:
    parts = with_aggregator(aggregator)
    for position, victim in enumerate(honest[2]):
        gone = Missing(victim, Refusal.FAILED, "")
        without, _ = one_round(parts, honest, at(position, lambda _, gone=gone: gone))  # type: ignore[misc]
        for name, (code, tamper) in REFUSED.items():
            after, answers = one_round(parts, honest, at(position, tamper))  # type: ignore[arg-type]
            assert [(fault.client, fault.code) for fault in answers.missing] == [(victim, code)], name
            assert answers.missing[0].reason
            assert torch.equal(after.omega, without.omega), f"{name} at {position} changed the model"
            assert after.participation == without.participation


ODD: dict[str, dict[str, Any]] = {
    "no images": {"examples": 0},
    "no metrics": {"metrics": {}},
    "no steps": {"metrics": {"steps": 0.0}},
    "negative steps": {"metrics": {"steps": -3.0}},
    "endless steps": {"metrics": {"steps": 1e15}},
    "more labels than images": {"metrics": {"kept": 1e15, "right": -5.0}},
}


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("claim", ODD)
def test_what_cannot_be_checked_does_not_carry_the_model_away(aggregator: str, claim: str, honest: Scene) -> None:
    """An empty client claims 0 images; steps and pseudo-labels are anybody's word."""
    parts = with_aggregator(aggregator)
    after, answers = one_round(parts, honest, at(0, lambda answer: replace(answer, **ODD[claim])))
    fair, _ = one_round(parts, honest, lambda _, answers: answers)
    start = honest[1].omega
    furthest = max(float((update.reply["psi"] - start).norm()) for update in answers.updates)
    assert float((after.omega - start).norm()) <= 2 * max(furthest, float((fair.omega - start).norm()))


def test_the_claim_of_no_images_weighs_nothing_where_images_count(honest: Scene) -> None:
    parts = with_aggregator("fedavg")
    gone = Missing(honest[2][0], Refusal.FAILED, "")
    without, _ = one_round(parts, honest, at(0, lambda _: gone))
    after, answers = one_round(parts, honest, at(0, lambda answer: replace(answer, examples=0)))  # type: ignore[arg-type]
    assert not answers.missing
    assert torch.equal(after.omega, without.omega)


def test_inflated_counts_do_nothing_under_fedfreq(honest: Scene) -> None:
    """Even where the server does not know the clients' sizes."""
    parts = with_aggregator("fedfreq")
    parts = replace(parts, clients=replace(parts.clients, sizes=None))
    fair, _ = one_round(parts, honest, lambda _, answers: answers)
    after, answers = one_round(parts, honest, at(1, lambda answer: replace(answer, examples=999_999)))  # type: ignore[arg-type]
    assert len(answers.updates) == 5
    assert torch.equal(after.omega, fair.omega)
    _, answers = one_round(parts, honest, at(1, lambda answer: replace(answer, examples=1_000_001)))  # type: ignore[arg-type]
    assert [fault.code for fault in answers.missing] == ["E407"]


def test_answers_nobody_waits_for_are_told_and_ignored(honest: Scene) -> None:
    parts = with_aggregator("uniform")
    fair, _ = one_round(parts, honest, lambda _, answers: answers)
    stranger = next(k for k in range(12) if k not in honest[2])

    def crowd(_: int, answers: list[Answer]) -> list[Answer]:
        twice = replace(answers[0], reply={"psi": torch.zeros(3)})  # type: ignore[arg-type]
        return [*answers, twice, replace(answers[1], client=stranger)]

    after, answers = one_round(parts, honest, crowd)
    assert torch.equal(after.omega, fair.omega)
    assert {(fault.client, fault.code) for fault in answers.unused} == {(honest[2][0], "E414"), (stranger, "E415")}


def test_a_client_that_says_nothing_is_missing_by_name(honest: Scene) -> None:
    _, answers = one_round(with_aggregator("uniform"), honest, lambda _, answers: answers[1:])
    assert [(fault.client, fault.code) for fault in answers.missing] == [(honest[2][0], "E410")]


def peak() -> int:
    """The most memory this process has had, in bytes, since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def test_an_oversized_reply_is_refused_before_it_is_touched(honest: Scene) -> None:
    parts = with_aggregator("median")
    huge = torch.zeros(1).expand(2**33)  # claims 32 GB
    peak()
    before = peak()
    _, answers = one_round(parts, honest, at(2, lambda answer: replace(answer, reply={"psi": huge})))  # type: ignore[arg-type]
    assert [fault.code for fault in answers.missing] == ["E405"]
    assert peak() - before < 64 << 20


def all_nan(_: int, answers: list[Answer]) -> list[Answer]:
    return [reply(spoil(float("nan")))(a) if isinstance(a, ClientUpdate) else a for a in answers]


def test_a_round_without_a_sound_update_is_skipped_and_the_model_stays() -> None:
    parts, fleet = tiny_parts()
    first = parts.network.snapshot()
    bad_second = AlteredFleet(fleet, lambda t, answers: all_nan(t, answers) if t == 1 else answers)
    (one, _), (two, skipped), (three, after) = play(parts, bad_second, 3)
    assert not torch.equal(first, one.omega)
    assert skipped["skipped"]
    assert torch.equal(one.omega, two.omega)
    assert one.participation == two.participation
    assert skipped["weights"] == {}
    assert [fault["code"] for fault in left_out(skipped)] == ["E404"] * 3
    assert not after["skipped"]
    assert not torch.equal(two.omega, three.omega)


@pytest.mark.parametrize("survivor", [0, 1, 2])
def test_one_survivor_is_enough(survivor: int) -> None:
    parts, fleet = tiny_parts()
    lonely = AlteredFleet(fleet, lambda _, answers: [answers[survivor]])
    ((state, record),) = play(parts, lonely, 1)
    assert torch.isfinite(state.omega).all()
    assert list(record["weights"].values()) == [1.0]
    assert len(left_out(record)) == 2


def test_after_max_skipped_the_run_stops_by_name_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sick_fleet(parts: Parts) -> AlteredFleet:
        return AlteredFleet(local_fleet(parts), lambda t, answers: all_nan(t, answers) if t in sick else answers)

    monkeypatch.setattr("fedfew.runs.session.local_fleet", sick_fleet)
    sick = {1, 2, 3}
    session = start(tiny(rounds=5, max_skipped=3), tmp_path / "run")
    with pytest.raises(FedfewError, match=r"E501.*3 rounds in a row"):
        list(session.advance())
    assert [record["skipped"] for record in Run.open(tmp_path / "run").rounds] == [False, True, True, True]
    again = reopen(tmp_path / "run", lambda fault: pytest.fail(str(fault)))
    assert again.state.round == 4
    assert torch.equal(again.state.omega, session.state.omega)
    assert [record["round"] for record in again.advance()] == [5]

    sick = {1, 2}  # not enough in a row to stop
    whole = start(tiny(rounds=5, max_skipped=3), tmp_path / "whole")
    assert len(list(whole.advance())) == 5
