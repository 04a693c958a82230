"""Hostile clients on the real way through a round, with default settings; and honest ones that must not be accused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.runtime.tiny_run import AlteredFleet, Answer, play, tiny_parts
from torch import Tensor

from fedfew.config.parts import Parts
from fedfew.core import spill
from fedfew.core.errors import Refusal
from fedfew.core.evaluation import evaluate
from fedfew.core.layout import Expected, Schema
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientUpdate, Missing, ServerState
from fedfew.data.samples import Images
from fedfew.runtime.gate import Gate
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.screen import MOST_HARM, Measurement, Screen, models, spread_over_classes, typical
from fedfew.runtime.wire import Wire

Craft = Callable[[Tensor, Tensor], Tensor]
"""What a hostile client sends, from what it was sent and what it would send if it were honest."""
FIVE = {"participation": 5 / 12, "server__epochs": 5, "server__momentum": 0.9, "rounds": 3}


def one_hostile(fleet: Any, craft: Craft) -> AlteredFleet:
    """The first client of every round sends something of its own."""
    sent: dict[int, Any] = {}

    def alter(_: int, answers: list[Answer]) -> list[Answer]:
        first = answers[0]
        assert isinstance(first, ClientUpdate)
        crafted = craft(sent[first.client]["omega"], first.reply["psi"])
        return [replace(first, reply={"psi": crafted}), *answers[1:]]

    class Listening(AlteredFleet):
        def train(self, round: int, payloads: Any) -> Any:
            sent.update(payloads)
            return super().train(round, payloads)

    return Listening(fleet, alter)


def biased(parts: Parts) -> Craft:
    last = parts.network.layout.offsets[-2]

    def craft(_: Tensor, own: Tensor) -> Tensor:
        vector = own.clone()
        vector[last] += 100
        return vector

    return craft


def codes(record: RoundRecord) -> list[str]:
    return [fault["code"] for fault in record["rejected"]]


@pytest.mark.parametrize("method", ["fedmix", "fedavg"])
@pytest.mark.parametrize("attack", ["minus", "bias"])
def test_one_client_cannot_take_the_model_over(method: str, attack: str) -> None:
    """ψ = −200·ω is as finite and as long as the gate allows, and ended runs at 10 %."""
    parts, fleet = tiny_parts(method__name=method, **FIVE)
    craft: Craft = (lambda sent, _: -200 * sent) if attack == "minus" else biased(parts)
    played = play(parts, one_hostile(fleet, craft), 2)
    parts, fleet = tiny_parts(method__name=method, **FIVE)
    without = AlteredFleet(
        fleet, lambda _, answers: [Missing(answers[0].client, Refusal.OUT_OF_BOUNDS, ""), *answers[1:]]
    )
    assert [codes(record) for _, record in played] == [["E421"]] * 2
    assert torch.equal(played[-1][0].omega, play(parts, without, 2)[-1][0].omega), "as if it had not answered"


def test_a_single_client_that_destroys_is_refused() -> None:
    parts, fleet = tiny_parts(participation=1 / 12, server__epochs=5)
    ((state, record),) = play(parts, one_hostile(fleet, lambda sent, _: -200 * sent), 1)
    assert codes(record) == ["E421"] and record["skipped"]
    assert state.participation == {} and state.refused == {record["cohort"][0]: 1}


def test_a_change_longer_than_the_others_is_shortened_and_told() -> None:
    parts, fleet = tiny_parts(method__name="fedavg", objective__threshold=0.2, gate__max_harm=0.0, **FIVE)
    _, (state, record) = play(parts, one_hostile(fleet, lambda sent, own: sent + 50 * (own - sent)), 2)
    shortened = {update["client"]: update for update in record["updates"] if "scaled" in update}
    assert list(shortened) == [record["cohort"][0]] and not record["rejected"]
    norms = sorted(update["norm"] or 0.0 for update in record["updates"])
    assert (shortened[record["cohort"][0]]["norm"] or 0.0) <= 1.01 * norms[2], "no longer than the median"
    assert torch.isfinite(state.omega).all()


@pytest.mark.parametrize("settings", [{}, {"compression__kind": "int8"}, {"method__name": "fedmatch"}])
def test_any_order_of_arrival_and_any_memory_give_the_same_bits(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the bound makes many updates longer than allowed."""
    everything = FIVE | {"gate__clip": 0.1, "method__threshold": 0.12, "server__epochs": 1} | settings

    def played(alter: Callable[[int, list[Answer]], list[Answer]]) -> tuple[ServerState, RoundRecord]:
        parts, fleet = tiny_parts(**everything)
        return play(parts, AlteredFleet(fleet, alter), 2)[-1]

    state, record = played(lambda _, answers: answers)
    backwards, _ = played(lambda _, answers: answers[::-1])
    monkeypatch.setattr(spill.ReplySpill.__init__, "__defaults__", (0,))
    on_disk, _ = played(lambda _, answers: answers)
    assert torch.equal(state.omega, backwards.omega) and torch.equal(state.omega, on_disk.omega)
    if "method__name" in settings:
        assert any("scaled" in update for update in record["updates"])


@pytest.mark.parametrize("method", ["fedmix", "fedavg", "fedfew", "semifl", "fedmatch"])
def test_honest_clients_of_one_or_two_classes_are_not_accused(method: str) -> None:
    own = {"fedmix": {"method__threshold": 0.3}, "fedavg": {"objective__threshold": 0.3}}.get(
        method, {"method__threshold": 0.3}
    )
    warm = {"method__warmup": 40} if method != "fedmix" else {}
    parts, fleet = tiny_parts(method__name=method, partition__mu=0.1, client__epochs=3, **FIVE, **own, **warm)
    assert [record["rejected"] for _, record in play(parts, fleet, 3)] == [[], [], []]


def test_noise_for_privacy_is_not_taken_for_harm() -> None:
    parts, fleet = tiny_parts(privacy__clip=1.0, privacy__noise=1.0, **FIVE)
    assert [record["rejected"] for _, record in play(parts, fleet, 2)] == [[], []]


def test_a_refused_client_does_not_gain_weight() -> None:
    """It weighed .458 after nine refusals, honest ones .271: FedFreq counted used updates only."""
    parts, fleet = tiny_parts(clients=3, participation=1.0, aggregator__name="fedfreq", rounds=6)

    def alter(round: int, answers: list[Answer]) -> list[Answer]:
        first = answers[0]
        assert isinstance(first, ClientUpdate)
        broken = replace(first, reply={"psi": first.reply["psi"] * float("nan")})
        return [broken if 0 < round < 5 else first, *answers[1:]]

    states = play(parts, AlteredFleet(fleet, alter), 6)
    last, record = states[-1]
    assert last.refused == {0: 4} and last.participation == {0: 2, 1: 6, 2: 6}
    assert record["weights"] == {str(k): pytest.approx(1 / 3) for k in range(3)}


def judged(
    harms: list[float],
    lengths: list[float] | None = None,
    own: float = 0.0,
    before: tuple[float, ...] = (),
    gate: Gate | None = None,
) -> Any:
    measurements = {k: Measurement({"psi": (lengths or [1.0] * len(harms))[k]}, harm) for k, harm in enumerate(harms)}
    return Screen(gate or Gate(), {}, None, own, None, {"psi": before}).judge(measurements)  # type: ignore[arg-type]


def test_harm_is_judged_by_the_least_harmful_quarter() -> None:
    assert list(judged([0.0, 0.1, 0.3, 0.2, 0.51]).refused) == [4]
    assert not judged([0.8, 0.9, 1.1, 1.5, 3.0]).refused, "where training hurts as a whole nobody is accused"
    assert list(judged([0.0, 0.1, 50.0, 60.0, 70.0]).refused) == [2, 3, 4], "hostile clients in the majority"
    assert list(judged([MOST_HARM + 1]).refused) == [0] and not judged([3.0]).refused
    assert list(judged([float("inf"), 0.0]).refused) == [0]
    assert not judged([0.5, 0.0, 0.0, 0.0, 0.0]).refused, "as much as allowed"
    nine = [0.0, 0.1, 0.2, 0.3, 0.4, 0.7, 0.79, 0.81, 0.9]
    assert list(judged(nine).refused) == [7, 8], "the third of nine is the quarter"
    assert list(judged([0.0, 0.2, 0.79, 0.81, 0.9]).refused) == [3, 4], "and the second of five"
    reason = "a quarter of its change raises the loss on the server's labels by 0.9, the bound is 0.8"
    assert judged(nine).refused[8].reason == reason


def test_lengths_are_judged_by_the_median_of_those_that_moved() -> None:
    quiet = [0.0] * 5
    assert judged(quiet, [1.0, 1.2, 0.9, 30.0, 2.9]).scaled == {3: {"psi": pytest.approx((3.6 / 30) ** 2 / 3)}}
    assert not judged(quiet, [0.0, 0.0, 0.0, 0.0, 9.0]).scaled, "one that moved cannot be compared"
    assert not judged(quiet, [1.0, 1.2, 0.9, 30.0, 2.9], own=40.0).scaled, "no further than the server went"
    assert judged([0.0, 0.0], [1.0, 30.0], own=2.0).scaled == {1: {"psi": pytest.approx((6 / 30) ** 2 / 3)}}
    assert typical([5.0], 1.0) == float("inf") and typical([1.0, 2.0, 3.0], 0.5) == 2.0
    assert not judged(quiet, [1.0, 1.0, 1.0, 3.0, 1.0]).scaled, "as long as allowed"
    assert not judged(quiet, [1.0, 1.0, 1.0, 99.0, 1.0], gate=Gate(clip=0.0)).scaled, "and without a bound, any length"


def test_a_hostile_majority_is_judged_by_the_rounds_before() -> None:
    """Three of five hostile clients are the median of their round, but not of ten rounds."""
    quiet, usual = [0.0] * 5, (1.0, 1.1, 40.0, 0.9)
    attacked = [1.0, 50.0, 1.2, 40.0, 60.0]
    assert not judged(quiet, attacked).scaled, "the round alone does not show it"
    found = judged(quiet, attacked, before=usual)
    assert found.scaled == {k: {"psi": pytest.approx((6.6 / attacked[k]) ** 2 / 3)} for k in (1, 3, 4)}
    assert found.lengths == {"psi": (*usual, 40.0)}
    assert judged(quiet, attacked, own=70.0, before=usual).scaled == found.scaled, (
        "the server's step excuses one, not most"
    )
    assert not judged(quiet, [1.0, 50.0, 1.2, 1.1, 0.9], own=70.0, before=usual).scaled
    assert not judged(quiet, [7.0, 50.0, 9.0, 40.0, 60.0], before=usual).scaled, "all go further: training has changed"
    assert not judged(quiet, [1.0, 3.0, 3.5, 4.0, 6.5], before=usual).scaled, "honest rounds differ that much"
    assert not judged([0.0, 0.0], [1.0, 30.0], before=usual).scaled, "one of two says nothing about the other"
    assert not judged([0.0] * 4, [1e-6, 7.0, 7.0, 7.0], before=usual).scaled, "nor one of four"
    assert not judged(quiet, [1e-6, 1e-6, 1.0, 1.0, 1.0], before=(1e-6,)).scaled, "one round is not usual"
    assert judged(quiet, [60.0, 50.0, 900.0, 800.0, 700.0], before=(9.0, 10.0)).scaled.keys() == {2, 3, 4}
    assert not judged(quiet, [60.0, 61.0, 900.0, 800.0, 700.0], before=(9.0, 10.0)).scaled, (
        "the second of five is the quarter"
    )
    assert not judged([0.0] * 9, [1.0, 1.0, 61.0, 61.0, *[900.0] * 5], before=(9.0, 10.0)).scaled, "the third of nine"
    assert judged([0.0, 0.0, 99.0, 99.0, 0.0], [1.0, 1.0, 50.0, 50.0, 50.0]).scaled.keys() == {4}, (
        "refused ones do not count"
    )
    assert judged([0.0, 0.0, 99.0, 99.0, 0.0], [1.0, 1.0, 50.0, 50.0, 50.0]).lengths == {"psi": (1.0,)}
    assert not judged(quiet, [0.0, 61.0, 900.0, 800.0, 0.0], before=(9.0, 10.0)).scaled, (
        "who has not moved does not count"
    )


def test_the_lengths_of_ten_rounds_are_remembered() -> None:
    parts, fleet = tiny_parts(method__name="fedavg", objective__threshold=0.2, **FIVE)
    many = AlteredFleet(fleet, lambda round, answers: answers)
    states = play(parts, many, 12)
    medians = [
        sorted(update["norm"] or 0.0 for update in record["updates"])[(len(record["updates"]) - 1) // 2]
        for _, record in states
    ]
    (kept,) = states[-1][0].lengths.values()
    assert kept == pytest.approx(medians[-10:], rel=1e-3)


def test_harm_is_the_rise_of_the_loss_from_what_each_client_was_sent() -> None:
    parts, _ = tiny_parts(method__name="fedavg", **FIVE)
    wire = Wire(parts.algorithm, ())
    screen = Screen.of(Gate(), wire, parts.server, parts.algorithm.start(parts.network.snapshot()))
    first, second = parts.network.snapshot(), parts.network.snapshot() * 3

    def loss(vector: Tensor) -> float:
        parts.server.network.load(vector)
        return evaluate(parts.server.network, screen.tries)[1]  # type: ignore[arg-type]

    for sent in (first, second, second, first):
        trained = sent + 0.1 * torch.randn(len(sent), generator=torch.Generator().manual_seed(1))
        found = screen.measure({"psi": trained}, {"omega": sent})
        assert found.harm == pytest.approx(loss(torch.lerp(sent, trained, 0.25)) - loss(sent), abs=1e-5)
        assert found.lengths == {"psi": pytest.approx(float((trained - sent).norm()))}
    beyond = torch.full_like(first, 3e38)
    assert screen.measure({"psi": beyond}, {"omega": first}).harm == float("inf"), "a loss that is no number"


def test_a_change_without_a_sent_tensor_is_scaled_itself() -> None:
    schema = {"psi": Expected((None,), near="omega"), "delta": Expected((None,), delta=True)}
    screen = Screen(Gate(), schema, None, 0.0, None)  # type: ignore[arg-type]
    reply = {"psi": torch.tensor([5.0]), "delta": torch.tensor([4.0])}
    made = screen.shrunk(reply, {"omega": torch.tensor([1.0])}, {"psi": 0.25, "delta": 0.25})
    assert made["psi"].tolist() == [2.0] and made["delta"].tolist() == [1.0]


def test_updates_are_tried_on_a_share_of_every_class() -> None:
    labels = torch.tensor([2] * 40 + [0] * 40 + [1] * 20)
    chosen = spread_over_classes(LabeledSet(Images(torch.arange(100)[:, None]), labels), 10)
    assert torch.bincount(chosen.labels).tolist() == [4, 2, 4]
    assert torch.equal(labels[chosen.samples.data[:, 0]], chosen.labels)


@pytest.mark.parametrize("known", [True, False])
def test_a_claim_of_a_million_images_weighs_like_a_few_clients(known: bool) -> None:
    """Where the server does not know how many images a client has, one claim would else be the whole mean."""
    parts, fleet = tiny_parts(method__name="fedavg", objective__threshold=0.2, **FIVE)
    if not known:
        parts = replace(parts, clients=replace(parts.clients, sizes=None))
    liar = AlteredFleet(fleet, lambda _, answers: [replace(answers[0], examples=1_000_000), *answers[1:]])  # type: ignore[arg-type]
    _, record = play(parts, liar, 1)[0]
    first = record["cohort"][0]
    if known:
        assert codes(record) == ["E407"]
        return
    honest = [len(parts.federation.partition.of(k)) for k in record["cohort"][1:]]
    (told,) = [update["counted"] for update in record["updates"] if "counted" in update]
    assert told == round(5 * sorted([*honest, 1_000_000])[2])
    assert (record["weights"][str(first)] or 1.0) == pytest.approx(told / (told + sum(honest)), abs=1e-4)
    assert record["coverage"] is not None and record["coverage"] <= 1


def test_sums_shrink_with_the_images_that_are_not_believed() -> None:
    schema = {"sums": Expected((None,), limit=4, per_example=1.0)}
    parts, _ = tiny_parts()
    screen = Screen(Gate(), schema, parts.server, 0.0, None)

    def counts(n: float) -> dict[str, float]:
        return {"kept": float(n), "right": float(n), "class/3": float(n), "steps": 1.0}

    updates = {k: ClientUpdate(k, {"sums": torch.full((4,), float(n))}, n, counts(n))
               for k, n in enumerate([0, 10, 12, 600])}  # fmt: skip
    (counted,) = screen.overstated(updates).items()
    assert counted[0] == 3 and counted[1].examples == 60
    assert counted[1].reply["sums"].tolist() == [60.0] * 4 and counted[1].metrics == counts(60)
    assert not screen.overstated({k: replace(updates[k], examples=n) for k, n in enumerate([0, 10, 12, 50])})
    ones = {k: replace(updates[k], examples=n) for k, n in enumerate([1, 1, 1, 3])}
    assert replace(screen, gate=Gate(max_times=0.1)).overstated(ones)[3].examples == 1, "at least one image"
    assert not replace(screen, gate=Gate(max_times=0.0)).overstated(updates)
    assert not screen.overstated({k: updates[k] for k in (0, 1, 3)}), "two claims cannot be compared"


@pytest.mark.parametrize("claimed", [1e9, 1e5])
def test_steps_that_a_clients_images_do_not_allow_count_as_those_they_do(claimed: float) -> None:
    """FedNova multiplies every change by the mean of the steps: one client that claimed a billion ruined the model."""
    settings = {"method__name": "fedavg", "objective__threshold": 0.0, "aggregator__name": "fednova", **FIVE}

    def claim(_: int, answers: list[Answer]) -> list[Answer]:
        first = answers[0]
        assert isinstance(first, ClientUpdate)
        return [replace(first, metrics={**first.metrics, "steps": claimed}), *answers[1:]]

    parts, fleet = tiny_parts(**settings)
    ((hostile, _),) = play(parts, AlteredFleet(fleet, claim), 1)
    parts, fleet = tiny_parts(**settings)
    ((honest, _),) = play(parts, fleet, 1)
    assert torch.equal(hostile.omega, honest.omega)


def test_the_schema_tells_which_model_a_reply_makes() -> None:
    sent = {"omega": torch.tensor([1.0, 2.0]), "sigma": torch.tensor([1.0, 1.0]), "psi": torch.tensor([0.5, 0.0])}
    near: Schema = {"control": Expected((2,), delta=True), "psi": Expected((2,), near="omega")}
    reply = {"psi": torch.tensor([3.0, 3.0]), "control": torch.ones(2)}
    assert models(near, sent, reply) == (sent["omega"], reply["psi"])
    sparse: Schema = {}
    for group in ("", "sigma_"):
        sparse[f"{group}index"] = Expected((None,), torch.int32, limit=2, index=True, group=group)
        sparse[f"{group}change"] = Expected((None,), limit=2, delta=True, group=group, base=("sigma", "psi"))
    index, second = torch.tensor([1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    changes = {"index": index, "change": torch.tensor([4.0]), "sigma_index": second, "sigma_change": torch.ones(1)}
    base, made = models(sparse, sent, changes) or (torch.empty(0), torch.empty(0))
    assert base.tolist() == [1.5, 1.0] and made.tolist() == [2.5, 5.0]
    assert models({"sums": Expected((2,))}, sent, {"sums": torch.ones(2)}) is None


@pytest.mark.parametrize(("method", "step"), [("fedmix", 5.0), ("fedmatch", 0.0)])
def test_the_servers_own_step_counts_where_clients_send_models(method: str, step: float) -> None:
    """Where they send changes of ψ, σ is the other part of the sum, and σ − ω no step."""
    parts, _ = tiny_parts(method__name=method)
    omega = parts.network.snapshot()
    sigma = omega.clone()
    sigma[:2] += torch.tensor([3.0, 4.0])
    screen = Screen.of(Gate(), Wire(parts.algorithm), parts.server, ServerState(1, omega, sigma))
    assert screen.own_step == pytest.approx(step, rel=1e-5)
