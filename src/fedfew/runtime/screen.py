"""The screen: compares the updates of a round with each other and with the server's labels before aggregation.

The gate checks each reply alone; the screen knows the cohort. Its three checks use numbers measured on each update
alone, so that neither the order of arrival nor the number of processes matters:

    length   ‖ψ_k − ω‖ > b = max(clip · m, ‖σ − ω‖)   →  scaled down to (b/clip) · b/‖ψ_k − ω‖: no longer than m,
             and the longer it was the less is left; no client is accused. m is the median over the cohort, or twice
             the usual one of the last rounds where that is shorter and a quarter of the cohort is within its bound
    harm     h_k = loss(ω + (ψ_k − ω)/4) − loss(ω) on labeled images of the server
             h_k > max(max_harm, 4 · lower quartile of the cohort's), or > 10   →  the update is refused (E421)

    claim    n_k > max_times · median over the cohort, where only the client knows n_k   →  counted as that many

A client with one or two classes forgets the others, so its whole model says nothing about its honesty; a quarter of its
change does: an honest one hardly moves the loss there, and a malicious model still does. The quartile keeps a cohort
whose training hurts as a whole from being refused. An influence that falls with the length beyond a bound is called
redescending in robust statistics (F. R. Hampel 1974). ‖σ − ω‖ is the server's own step, where it trains in parallel
with the clients: a client with labels of its own may go as far. The usual median is for a cohort that happens to have a
hostile majority: three of five hostile clients are rare where a fifth of all is hostile, but then they are the median.
If that is beyond the usual bound, ‖σ − ω‖ does not excuse it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from fedfew.core.errors import Refusal
from fedfew.core.evaluation import evaluate
from fedfew.core.layout import Payload, Reply, Schema, Vector
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientUpdate, Missing, ServerSite, ServerState
from fedfew.runtime.gate import Gate
from fedfew.runtime.wire import Wire

SHARE = 0.25
"""How much of a client's change is tried."""
MOST_HARM = 10.0
"""Nats: an update of which a quarter costs more is refused, whatever the others do."""
TIMES_QUARTILE = 4.0
"""An update may do this many times the lower quartile of the cohort's harm."""
FEWEST, ROUNDS, LONGER = 2, 10, 2.0
"""How many rounds make the usual length, at least and at most, and how many times as long a cohort's median may be."""


@dataclass(frozen=True)
class Measurement:
    """What was measured on one update."""

    lengths: dict[str, float]
    """The length of each tensor that is a change, or of its difference to what was sent."""
    harm: float | None
    """The loss that a quarter of it adds on the server's labels, in nats; None if not tried."""


@dataclass(frozen=True)
class Judgement:
    """Which updates are refused, and the factors by which tensors of others are scaled down."""

    refused: dict[int, Missing]
    scaled: dict[int, dict[str, float]]
    lengths: dict[str, tuple[float, ...]]
    """By name of a tensor, the median length in each of the last rounds, this one included."""


@dataclass(eq=False)
class Screen:
    """Measures the updates of one round as they arrive, and judges when all have arrived."""

    gate: Gate
    schema: Schema
    site: ServerSite
    own_step: float
    """‖σ − ω‖: how far the server's own training went in this round; 0 without any."""
    tries: LabeledSet | None
    """Labeled images that updates are tried on."""
    before: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By name of a tensor, the median length in each of the last rounds."""
    _base: tuple[Vector, float] | None = field(default=None, repr=False)

    @staticmethod
    def of(gate: Gate, wire: Wire, site: ServerSite, state: ServerState) -> "Screen":
        """The screen of a round; single updates with privacy noise are too noisy to be tried."""
        noisy = any(transform.noisy for transform in wire.transforms)
        tries = None if noisy or not gate.images else spread_over_classes(site.labeled, gate.images)
        schema = wire.schemas(site.network.layout)[0]
        # where clients send changes of a part of the model, σ is another part and σ − ω no step
        models = any(expected.near for expected in schema.values())
        own_step = float(torch.linalg.vector_norm(state.sigma - state.omega)) if models else 0.0
        return Screen(gate, schema, site, own_step, tries, state.lengths)

    def measure(self, reply: Mapping[str, Tensor], payload: Payload) -> Measurement:
        """Measure one update that has passed the gate."""
        lengths = {}
        for name, expected in self.schema.items():
            if expected.near or expected.delta:
                change = reply[name] - payload[expected.near] if expected.near else reply[name]
                lengths[name] = float(torch.linalg.vector_norm(change))
        return Measurement(lengths, self._harm(reply, payload))

    def _harm(self, reply: Mapping[str, Tensor], payload: Payload) -> float | None:
        if self.tries is None or not len(self.tries):
            return None
        pair = models(self.schema, payload, reply)
        if pair is None:
            return None
        sent, trained = pair
        if self._base is None or not torch.equal(self._base[0], sent):
            self._base = sent, self._loss(sent)
        before = self._base[1]
        after = self._loss(torch.lerp(sent, trained, SHARE))
        if not math.isfinite(before):
            return None
        return after - before if math.isfinite(after) else math.inf

    def _loss(self, vector: Vector) -> float:
        assert self.tries is not None
        self.site.network.load(vector)
        return evaluate(self.site.network, self.tries)[1]

    def shrunk(self, reply: Mapping[str, Tensor], payload: Payload, factors: Mapping[str, float]) -> Reply:
        """The reply with some of its changes scaled down."""
        made = dict(reply)
        for name, factor in factors.items():
            near = self.schema[name].near
            made[name] = torch.lerp(payload[near], made[name], factor) if near else made[name] * factor
        return made

    def overstated(self, updates: Mapping[int, ClientUpdate]) -> dict[int, ClientUpdate]:
        """Updates that claim many times the images of the others, counted with the most that is accepted."""
        claims = sorted(update.examples for update in updates.values() if update.examples)
        if not self.gate.max_times or len(claims) < 3:
            return {}
        most = max(round(self.gate.max_times * claims[(len(claims) - 1) // 2]), 1)
        return {k: self._counted(update, most) for k, update in updates.items() if update.examples > most}

    def _counted(self, update: ClientUpdate, most: int) -> ClientUpdate:
        """The update counted with ``most`` images; its sums over images are scaled down accordingly."""
        share = most / update.examples
        counts = [name for name in update.metrics if name in ("kept", "right") or name.startswith("class/")]
        metrics = update.metrics | {name: update.metrics[name] * share for name in counts}
        sums = {name: update.reply[name] * share for name, expected in self.schema.items() if expected.per_example}
        reply = {**update.reply, **sums} if sums else update.reply
        return replace(update, reply=reply, examples=most, metrics=metrics)

    def judge(self, measurements: Mapping[int, Measurement]) -> Judgement:
        """Decide which updates of the round are refused or scaled down."""
        refused = {k: Missing(k, Refusal.HARMFUL, reason) for k, reason in self._harmful(measurements).items()}
        scaled: dict[int, dict[str, float]] = {}
        after = dict(self.before)
        rest = {k: one for k, one in measurements.items() if k not in refused}
        for name in sorted({name for one in rest.values() for name in one.lengths}) if self.gate.clip else ():
            lengths = {k: one.lengths[name] for k, one in rest.items()}
            middle, before = typical(list(lengths.values()), self.own_step), self.before.get(name, ())
            if math.isfinite(middle):
                after[name] = (*before, middle)[-ROUNDS:]
            most, clip = usual(list(lengths.values()), before, self.gate.clip), self.gate.clip
            bound = clip * most if middle > clip * most else max(clip * min(middle, most), self.own_step)
            for k, length in lengths.items():
                if length > bound:
                    scaled.setdefault(k, {})[name] = (bound / length) ** 2 / clip
        return Judgement(refused, scaled, after)

    def _harmful(self, measurements: Mapping[int, Measurement]) -> dict[int, str]:
        harms = {k: one.harm for k, one in measurements.items() if one.harm is not None}
        if not harms or not self.gate.max_harm:
            return {}
        quartile = sorted(harms.values())[(len(harms) - 1) // 4]
        limit = min(max(self.gate.max_harm, TIMES_QUARTILE * quartile), MOST_HARM)
        problem = "a quarter of its change raises the loss on the server's labels by"
        return {k: f"{problem} {harm:.3g}, the bound is {limit:.3g}" for k, harm in harms.items() if harm > limit}


def models(schema: Schema, payload: Payload, reply: Mapping[str, Tensor]) -> tuple[Vector, Vector] | None:
    """The model a client was sent and the one it sends back; None where replies are not models."""
    near = next((name for name, expected in schema.items() if expected.near), "")
    if near:
        return payload[schema[near].near], reply[near]
    changes = {name: expected for name, expected in schema.items() if expected.base}
    if not changes:
        return None
    sent = reduce(torch.add, (payload[name] for name in next(iter(changes.values())).base))
    trained = sent.clone()
    for name, expected in changes.items():
        index = next(other for other, form in schema.items() if form.index and form.group == expected.group)
        trained[reply[index].long()] += reply[name]
    return sent, trained


def typical(lengths: Sequence[float], own_step: float) -> float:
    """The median (the lower of two) of the nonzero lengths, with the server's added if there are fewer than three.

    Infinity if there are still too few to compare.
    """
    moved = [length for length in lengths if length > 0]
    if len(moved) < 3 and own_step:
        moved = [*moved, own_step]
    return sorted(moved)[(len(moved) - 1) // 2] if len(moved) >= 3 else math.inf


def usual(lengths: Sequence[float], before: Sequence[float], clip: float) -> float:
    """Twice the median of the last rounds' medians; infinity where fewer than a quarter, or two, are within its bound.

    Then all go further, because training itself has changed.
    """
    moved = sorted(length for length in lengths if length > 0)
    if len(before) < FEWEST or len(moved) < 2:
        return math.inf
    most = LONGER * sorted(before)[len(before) // 2]
    return most if moved[max((len(moved) - 1) // 4, 1)] <= clip * most else math.inf


def spread_over_classes(labeled: LabeledSet, count: int) -> LabeledSet:
    """At most ``count`` of the images, about the same share of every class."""
    if len(labeled) <= count:
        return labeled
    by_class = labeled.labels.argsort(stable=True)
    chosen = by_class[torch.arange(count) * len(labeled) // count]
    return labeled.take(chosen)
