"""Secure sums in a run: equal results on every fleet, drop-outs, resume, and a server that lies to real site code."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.private_sums import Unmasked
from tests.deploy.conftest import TINY
from torch import Tensor

from fedfew.config.parts import Parts, assemble, local_fleet, sites_of
from fedfew.config.schema import load
from fedfew.config.sums import consequences
from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.layout import Payload, Vector
from fedfew.core.types import ClientSite, ClientUpdate, Fleet, Missing, Scoring, ServerState, Trained
from fedfew.methods.fedavg import FedAvg
from fedfew.runs.session import reopen, start
from fedfew.runtime.exchange import Answers, ask
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds
from fedfew.runtime.site import InlineFleet
from fedfew.secure import messages
from fedfew.secure.messages import AGREE, KEYS, MASKED, NONCE, REVEAL, ROWS, SHARES, SITES, STEP, WEIGHTS
from fedfew.secure.terms import Terms

NINE = TINY | {"clients": 9, "participation": 1.0, "rounds": 2, "method.name": "fedavg"}
SECURE = {"privacy.sums": "secure"}
Change = Callable[[int, dict[int, Payload]], dict[int, Payload]]


def parts_of(**changes: Any) -> Parts:
    return assemble(load("quick", NINE | SECURE | {key.replace("__", "."): value for key, value in changes.items()}))


def trained(overrides: Mapping[str, Any]) -> tuple[ServerState, list[RoundRecord]]:
    parts = assemble(load("quick", NINE | dict(overrides)))
    fleet, begun = local_fleet(parts), parts.algorithm.start(parts.network.snapshot())
    try:
        made = list(run_rounds(parts.clients, parts.algorithm, parts.server, fleet, begun, parts.config.rounds))
    finally:
        fleet.close()
    return made[-1][0], [record for _, record in made]


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "semifl", "fedadam", "fedbn"])
def test_the_model_is_that_of_the_plain_run_and_of_every_fleet(method: str) -> None:
    name = {"method.name": method, "participation": 0.6} | ({"model.norm": "batch"} if method == "fedbn" else {})
    plain, before = trained(name)
    inline, records = trained(name | SECURE)
    assert torch.allclose(plain.omega, inline.omega, atol=1e-6)  # float32 has 1e-7; a step is 1e-10
    assert plain.participation == inline.participation
    assert [r["cohort"] for r in before] == [r["cohort"] for r in records]
    assert all(
        not r["updates"] and not r["weights"] and r["coverage"] is None for r in records
    )  # nothing of one client
    if method in ("fedavg", "fedmix"):
        pool, _ = trained(name | SECURE | {"fleet.kind": "pool", "fleet.workers": 2})
        assert torch.equal(inline.omega, pool.omega)


class Between(Fleet):
    """A fleet whose messages pass through ``change(step, messages)``: a server that lies, or clients that are gone."""

    def __init__(self, parts: Parts, change: Change, inner: Any = None) -> None:
        self.inner: Any = inner or InlineFleet(sites_of(parts.config, parts.federation, parts.network))
        self.change = change
        self.answers: list[tuple[int, ClientUpdate | Missing]] = []

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        scoring: Scoring = self.inner.score(omega, clients)
        return scoring

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        step = int(next(iter(payloads.values()))[STEP])
        for answer in self.inner.train(round, self.change(step, dict(payloads))):
            self.answers.append((step, answer))
            yield answer

    def refusals(self, step: int) -> dict[int, str]:
        return {a.client: a.reason for s, a in self.answers if s == step and isinstance(a, Missing)
                and a.code == Refusal.SUM_REFUSED}  # fmt: skip


def asked(parts: Parts, change: Change, inner: Any = None, round: int = 0) -> tuple[Answers, Between]:
    fleet = Between(parts, change, inner)
    state = replace(parts.algorithm.start(parts.network.snapshot()), round=round)
    return ask(parts.clients, parts.algorithm, parts.server, fleet, state), fleet


@pytest.mark.parametrize("step", [KEYS, SHARES, MASKED, AGREE, REVEAL])
def test_a_third_may_drop_out_in_any_exchange_at_the_cost_of_its_own_part(step: int) -> None:
    parts, gone = parts_of(), {1, 4, 7}

    def leave(now: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        return {k: payload for k, payload in sent.items() if now < step or k not in gone}

    answers, _ = asked(parts, leave)
    counted = set(range(9)) - (gone if step <= MASKED else set())
    assert set(answers.summed) == counted
    assert {missing.client for missing in answers.missing} == set(range(9)) - counted
    plain, _ = _plain(counted)
    assert torch.allclose(answers.updates[0].reply["psi"], plain, atol=1e-6)
    assert answers.updates[0].examples == sum(int(parts.federation.partition.sizes[k]) for k in counted)


def _plain(clients: set[int]) -> tuple[Tensor, int]:
    """Σ n ψ / Σ n of single updates."""
    parts = assemble(load("quick", NINE))
    state = parts.algorithm.start(parts.network.snapshot())
    sites = sites_of(parts.config, parts.federation, parts.network)
    updates = [sites.train(0, k, parts.algorithm.broadcast(state, k)) for k in sorted(clients)]
    total = sum(u.examples for u in updates if isinstance(u, ClientUpdate))
    summed = sum((u.examples * u.reply["psi"].double() for u in updates if isinstance(u, ClientUpdate)), torch.zeros(1))
    return (summed / total).float(), total


def test_the_sums_without_masks_of_the_benchmarks_are_those_of_the_protocol() -> None:
    parts = parts_of()
    masked, fleet = asked(parts, lambda step, sent: sent)
    open_fleet, state = (
        InlineFleet(replace(fleet.inner.sites, sums=None)),
        parts.algorithm.start(parts.network.snapshot()),
    )
    plain = Unmasked.of(parts.config).ask(parts.clients, parts.algorithm, parts.server, open_fleet, state)
    assert torch.equal(masked.updates[0].reply["psi"], plain.updates[0].reply["psi"])
    assert masked.summed == plain.summed and masked.updates[0].examples == plain.updates[0].examples


def test_a_sum_that_one_client_ruins_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No single client is named, because none can be seen; its range is as wide as if it did not keep to it."""
    honest = FedAvg.train_client

    def ruined(method: FedAvg, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        trained = honest(method, payload, site, rng)
        return trained if site.client else replace(trained, reply={"psi": -200 * payload["omega"]})

    monkeypatch.setattr(FedAvg, "train_client", ruined)
    answers, _ = asked(parts_of(privacy__reach=1e4), lambda step, sent: sent)
    assert not answers.updates
    assert {m.code for m in answers.missing} == {Refusal.HARMFUL} and len(answers.missing) == 9


def test_with_more_drop_outs_there_is_no_sum_and_the_round_is_skipped() -> None:
    answers, _ = asked(parts_of(), lambda step, sent: {k: p for k, p in sent.items() if step < MASKED or k < 5})
    assert not answers.updates and not answers.summed
    assert {m.code for m in answers.missing if m.client < 5} == {Refusal.TOO_FEW}
    assert "5 of 9 clients answered exchange 3 of 5; 6 must" in answers.missing[0].reason


def to_first(change: Callable[[Payload], Payload], at: int) -> Change:
    """Lie to client 0 in one step."""
    return lambda step, sent: sent | {0: change(sent[0])} if step == at and 0 in sent else sent


def swapped_keys(sent: Payload) -> Payload:
    rows = messages.read_table(sent, messages.ADVERT)
    mine = rows[3][:32] + bytes(31) + b"\x09" + rows[3][64:]  # a key that the server knows, in the name of client 3
    return sent | messages.table(rows | {3: mine})


def another_model(sent: Payload) -> Payload:
    return sent | {"omega": sent["omega"] + 1}


def other_weights(sent: Payload) -> Payload:
    weights = torch.zeros_like(sent[WEIGHTS])
    weights[0] = 1.0
    return sent | {WEIGHTS: weights}


def fewer(width: int, count: int) -> Callable[[Payload], Payload]:
    def change(sent: Payload) -> Payload:
        rows = messages.read_table(sent, width)
        return sent | messages.table({k: row for k, row in rows.items() if k < count})

    return change


LIES: list[tuple[int, Callable[[Payload], Payload], str]] = [
    (KEYS, other_weights, "the weights make the sum one of few sites"),
    (KEYS, lambda sent: {k: v for k, v in sent.items() if k != STEP}, "sums only"),
    (SHARES, swapped_keys, "keys of site 3 are not signed by it"),
    (SHARES, lambda sent: sent | {NONCE: torch.zeros(16, dtype=torch.uint8)}, "another sum"),
    (SHARES, lambda sent: {k: v for k, v in sent.items() if k != ROWS}, "other rows"),
    (SHARES, lambda sent: sent | {SITES: sent[SITES].flip(0)}, "not in order"),
    (MASKED, another_model, "another model than the terms say"),
    (MASKED, fewer(148, 5), "5 sites take part; 6 must"),
    (AGREE, fewer(0, 5), "5 sites take part; 6 must"),
    (REVEAL, fewer(64, 5), "5 sites take part; 6 must"),
]


@pytest.mark.parametrize(("step", "lie", "reason"), LIES)
def test_a_client_that_is_lied_to_refuses(step: int, lie: Callable[[Payload], Payload], reason: str) -> None:
    answers, fleet = asked(parts_of(), to_first(lie, step))
    if step == KEYS and "sums only" in reason:  # the step is gone, so the fleet above cannot sort it
        assert any(reason in a.reason for _, a in fleet.answers if isinstance(a, Missing))
    else:
        assert list(fleet.refusals(step)) == [0]
        assert reason in fleet.refusals(step)[0]
    assert answers.summed  # the others go on


def test_different_lists_to_different_clients_end_in_no_sum() -> None:
    """Clients 0 to 3 hear that 8 has dropped out: nobody reveals, because no six have signed one list."""

    def lie(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        return {k: fewer(0, 8)(p) if step == AGREE and k < 4 else p for k, p in sent.items()}

    answers, fleet = asked(parts_of(), lie)
    assert not answers.updates
    assert not any(step == REVEAL for step, _ in fleet.answers)


def test_terms_that_differ_between_clients_end_in_no_sum() -> None:
    """Two groups are told different rounds of clients: their keys do not fit together."""

    def lie(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        if step != KEYS:
            return sent
        return {k: p | ({messages.PAYLOAD: p[messages.PAYLOAD] ^ 1} if k < 4 else {}) for k, p in sent.items()}

    answers, _ = asked(parts_of(), lie)
    assert not answers.updates


class Twice(Between):
    """A line that delivers every message twice, and then another one for the same step."""

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        for first in super().train(round, payloads):
            assert isinstance(first, ClientUpdate)
            sent = payloads[first.client]
            again = self.inner.sites.train(round, first.client, sent)
            assert isinstance(again, ClientUpdate)
            assert all(torch.equal(again.reply[name], first.reply[name]) for name in first.reply)  # noise included
            if ROWS in sent and int(sent[STEP]) != REVEAL:
                short = {name: sent[name][:-1] for name in (SITES, ROWS)}
                other = self.inner.sites.train(round, first.client, sent | short)
                assert isinstance(other, Missing) and other.code == Refusal.SUM_REFUSED
            yield again


def test_a_repeated_message_gets_the_same_answer_and_a_changed_one_none() -> None:
    parts = parts_of(privacy__clip=1.0, privacy__noise=1.0)
    fleet = Twice(parts, lambda step, sent: sent)
    state = parts.algorithm.start(parts.network.snapshot())
    assert ask(parts.clients, parts.algorithm, parts.server, fleet, state).summed == tuple(range(9))
    assert len(fleet.answers) == 5 * 9


def test_messages_of_an_earlier_round_are_refused() -> None:
    parts = parts_of()
    log: list[dict[int, Payload]] = []
    fleet = Between(parts, lambda step, sent: log.append(sent) or sent)  # type: ignore[func-returns-value]
    state = parts.algorithm.start(parts.network.snapshot())
    for t in (0, 1):
        ask(parts.clients, parts.algorithm, parts.server, fleet, replace(state, round=t))
    for old in log[1:5]:
        answer = fleet.inner.sites.train(1, 0, old[0])
        assert isinstance(answer, Missing) and answer.code == Refusal.SUM_REFUSED


def without(client: int, step: int = KEYS) -> Change:
    """A client is said to have left before a step."""
    return lambda now, sent: {k: p for k, p in sent.items() if now < step or k != client}


@pytest.mark.parametrize(("noise", "refused"), [({}, True), ({"privacy__clip": 1.0, "privacy__noise": 1.0}, False)])
def test_a_round_has_no_second_sum_of_other_clients_unless_with_noise(noise: dict[str, Any], refused: bool) -> None:
    """The difference of two sums would be client 8's part."""
    parts = parts_of(**noise)
    fleet = InlineFleet(sites_of(parts.config, parts.federation, parts.network))
    assert asked(parts, lambda step, sent: sent, fleet)[0].summed == tuple(range(9))
    for step in (KEYS, MASKED):
        answers, told = asked(parts, without(8, step), fleet)
        assert bool(told.refusals(AGREE)) == refused and bool(answers.updates) != refused
    assert asked(parts, without(8), fleet, round=1)[0].summed == tuple(range(8))
    again, _ = asked(parts, lambda step, sent: sent, fleet)  # a server that was killed repeats a round
    assert again.summed == tuple(range(9))


def test_a_round_has_no_second_sum_with_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedFreq's may leave out one client, whose part would be the difference."""
    parts, weigh = parts_of(aggregator__name="fedfreq"), Terms.of
    fleet = InlineFleet(sites_of(parts.config, parts.federation, parts.network))
    assert asked(parts, lambda step, sent: sent, fleet)[0].summed == tuple(range(9))

    def without_8(round: int, weights: Mapping[int, float], *rest: Any) -> Terms:
        return weigh(round, {**weights, 8: 0.0}, *rest)

    monkeypatch.setattr(Terms, "of", without_8)
    answers, told = asked(parts, lambda step, sent: sent, fleet)
    assert not answers.updates and set(told.refusals(AGREE)) == set(range(9))


def test_an_interrupted_run_repeats_the_round_with_new_keys_and_ends_equal(tmp_path: Path) -> None:
    config = load("quick", NINE | SECURE | {"rounds": 3})
    whole = start(config, tmp_path / "whole")
    for _ in whole.advance():
        pass
    halted = start(config, tmp_path / "halted")
    rounds = halted.advance()
    next(rounds)
    rounds.close()
    again = reopen(tmp_path / "halted", lambda fault: None)
    assert not again.memory  # no secret is in a checkpoint
    for _ in again.advance():
        pass
    assert torch.equal(whole.state.omega, again.state.omega)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"method.name": "fedfew"}, "privacy.sums"),
        ({"method.name": "scaffold"}, "privacy.sums"),
        ({"aggregator.name": "median"}, "aggregator.name"),
        ({"compression.kind": "int8"}, "compression.kind"),
        ({"clients": 2}, "participation"),
        ({"privacy.honest": 0.9}, "privacy.honest"),
    ],
)
def test_what_a_sum_cannot_serve_is_refused_with_the_reason(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(FedfewError, match=f"E113.*{where}"):
        load("quick", NINE | SECURE | changes)


@pytest.mark.parametrize(
    ("changes", "told", "untold"),
    [
        ({}, "Two sums that differ by one client show its part", "add the noise together"),
        ({"privacy.clip": 1.0, "privacy.noise": 2.0}, "ε holds while at least 4 of them are honest", "Two sums"),
    ],
)
def test_what_secure_sums_mean_is_said_before_the_run(changes: dict[str, Any], told: str, untold: str) -> None:
    said = consequences(load("quick", NINE | SECURE | changes))
    assert "over at least 6 of 9 clients a round, or nothing" in said
    assert told in said and untold not in said
    assert not consequences(load("quick", NINE | changes))
    assert not consequences(load("quick", NINE | SECURE | {"method.name": "server-only"}))
