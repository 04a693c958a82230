"""One exchange with the clients: select a cohort, send, collect, and pass on only valid updates.

A cohort is F·K clients, available uniformly or with a bias, some of whom drop out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import SHARED_CAUSE, UNUSED, FedfewError, Refusal
from fedfew.core.layout import Layout, Payload, nbytes
from fedfew.core.settings import Doc, Fraction, NonNegative
from fedfew.core.spill import ReplySpill
from fedfew.core.streams import numpy_stream
from fedfew.core.types import ClientUpdate, Fleet, Method, Missing, ServerSite, ServerState, Transform
from fedfew.runtime.gate import Gate
from fedfew.runtime.screen import Judgement, Measurement, Screen
from fedfew.runtime.wire import Wire


@dataclass(frozen=True)
class Availability:
    """How likely each client is to be selected, and how often a selected client never answers."""

    kind: Annotated[
        Literal["uniform", "zipf"], Doc("uniform: all clients alike; zipf: rank r has a share ∝ 1/r^exponent")
    ] = "uniform"
    exponent: Annotated[NonNegative, Doc("zipf: how steeply availability falls with the rank")] = 1.0
    dropout: Annotated[Fraction, Doc("simulated share of selected clients that never answer")] = 0.0


class Exchange(Protocol):
    """Another way to ask the clients of a round, e.g. for a sum of their updates (``fedfew.secure``)."""

    def ask(
        self, clients: "Clients", algorithm: Method, site: ServerSite, fleet: Fleet, state: ServerState
    ) -> "Answers": ...


@dataclass(frozen=True)
class Clients:
    """The population a run selects from, and the checks on its answers."""

    seed: int
    count: int
    cohort: int
    availability: Availability = field(default_factory=Availability)
    gate: Gate = field(default_factory=Gate)
    sizes: Sequence[int] | NDArray[np.int64] | None = None
    """Images of each client where the server knows them; a claim of more is refused."""
    transforms: Sequence[Transform] = ()
    """The transforms of the messages, innermost first."""
    min_updates: int = 1
    """With fewer usable updates the round is skipped."""
    exchange: Exchange | None = None
    """How updates are collected, if not one by one."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The result of an exchange: who was selected, whose updates count, who is missing and why, and the traffic."""

    cohort: list[int]
    updates: list[ClientUpdate]
    missing: list[Missing]
    payloads: dict[int, Payload]
    bytes_down: int
    bytes_up: int
    unused: list[Missing] = field(default_factory=list)
    wire: dict[str, int] = field(default_factory=dict)
    """Bytes really sent, where the fleet is a network."""
    classes: int = 0
    """The number of classes: every record's counts by class have this length."""
    scaled: dict[int, float] = field(default_factory=dict)
    """Clients whose change was too long compared with the cohort's, and the factor by which it was scaled down."""
    counted: dict[int, int] = field(default_factory=dict)
    """Clients that claim many times the images of the others, and how many were counted."""
    lengths: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The median lengths of the last rounds, this one included."""
    summed: tuple[int, ...] = ()
    """The clients in the one update, where it is a sum."""

    @property
    def used(self) -> list[ClientUpdate]:
        """An update for each client that is in one."""
        return [replace(self.updates[0], client=k) for k in self.summed] or self.updates


@dataclass(eq=False)
class Inbox:
    """The answers of a round as they arrive: each is checked and measured by itself."""

    payloads: Mapping[int, Payload]
    check: Callable[[ClientUpdate, Payload], ClientUpdate | Missing]
    screen: Screen
    missing: dict[int, Missing]
    updates: dict[int, ClientUpdate] = field(default_factory=dict)
    unused: list[Missing] = field(default_factory=list)
    measurements: dict[int, Measurement] = field(default_factory=dict)
    spill: ReplySpill = field(default_factory=ReplySpill)
    bytes_up: int = 0

    def take(self, answer: ClientUpdate | Missing) -> None:
        """Sort in one answer."""
        k = answer.client
        if isinstance(answer, Missing) and answer.code in UNUSED:
            self.unused.append(answer)
        elif k not in self.payloads:
            self.unused.append(Missing(k, Refusal.OTHER_ROUND, "was not selected"))
        elif k in self.updates or k in self.missing:
            self.unused.append(Missing(k, Refusal.TWICE, "answered again"))
        elif isinstance(answer, Missing):
            self.missing[k] = answer
        else:
            self.bytes_up += received_bytes(answer.reply)
            checked = self.check(answer, self.payloads[k])
            if isinstance(checked, Missing):
                self.missing[k] = checked
                return
            self.measurements[k] = self.screen.measure(checked.reply, self.payloads[k])
            self.updates[k] = replace(checked, reply=self.spill.put(checked.reply))

    def judge(self) -> Judgement:
        """Compare the answers: some are refused or scaled down."""
        judgement = self.screen.judge(self.measurements)
        for k, factors in judgement.scaled.items():
            reply = self.screen.shrunk(self.updates[k].reply, self.payloads[k], factors)
            self.updates[k] = replace(self.updates[k], reply=self.spill.put(reply))
        self.missing |= judgement.refused
        self.updates = {k: update for k, update in self.updates.items() if k not in self.missing}
        return judgement


def ask(clients: Clients, algorithm: Method, site: ServerSite, fleet: Fleet, state: ServerState) -> Answers:
    """Every update in the result has passed the gate; they are in the order of the clients, not of arrival."""
    if not algorithm.asks(state):
        return nobody(state)
    if clients.exchange is not None:
        return clients.exchange.ask(clients, algorithm, site, fleet, state)
    payloads, gone = select(clients, algorithm, fleet, state)
    cohort = list(payloads)
    down = sum(algorithm.bytes_down(state, k, payload) for k, payload in payloads.items())
    wire = Wire(algorithm, clients.transforms)
    inbox = Inbox(
        payloads,
        checker(clients, wire, site.network.layout, site.classes),
        Screen.of(clients.gate, wire, site, state),
        gone,
    )
    for answer in fleet.train(state.round, {k: payload for k, payload in payloads.items() if k not in gone}):
        inbox.take(answer)
    judgement = inbox.judge()
    updates, missing = inbox.updates, inbox.missing
    counted = inbox.screen.overstated(updates) if clients.sizes is None else {}
    updates |= counted
    silent = (k for k in cohort if k not in updates and k not in missing)
    missing |= {k: Missing(k, Refusal.NO_ANSWER, "gave no answer") for k in silent}
    if 0 < len(updates) < clients.min_updates:
        problem = f"answered, but only {len(updates)} of min_updates = {clients.min_updates} did"
        missing |= {k: Missing(k, Refusal.TOO_FEW, problem) for k in updates}
        updates = {}
    return Answers(
        cohort,
        [updates[k] for k in sorted(updates)],
        [missing[k] for k in sorted(missing)],
        payloads,
        down,
        inbox.bytes_up,
        inbox.unused,
        fleet.traffic(),
        site.classes,
        {k: min(judgement.scaled[k].values()) for k in sorted(judgement.scaled) if k in updates},
        {k: update.examples for k, update in counted.items() if k in updates},
        judgement.lengths,
    )


def nobody(state: ServerState) -> Answers:
    """The answers of a round in which no client is asked."""
    return Answers([], [], [], {}, 0, 0, lengths=state.lengths)


def checker(
    clients: Clients, wire: Wire, layout: Layout, classes: int | None = None
) -> Callable[[ClientUpdate, Payload], ClientUpdate | Missing]:
    """Turns an answer into the update that the method expects, or into the reason it is refused.

    An answer is checked as received and, where a transform has encoded it, again after decoding; what is not undone,
    such as noise, stays.
    """
    stays = [transform for transform in wire.transforms if type(transform).decode is Transform.decode]
    travels, plain = wire.reply_schema(layout), Wire(wire.method, stays).reply_schema(layout)

    def check(update: ClientUpdate, payload: Payload) -> ClientUpdate | Missing:
        size = None if clients.sizes is None else int(clients.sizes[update.client])
        fault = clients.gate.check(update, payload, travels, size, classes)
        if fault is not None or len(stays) == len(wire.transforms):
            return fault or update
        decoded = wire.decode(update, payload, layout)
        return clients.gate.check(decoded, payload, plain, size, classes) or decoded

    return check


def refuse_common_fault(answers: Answers) -> None:
    """E512 if every client of a round failed in the same way: then the configuration is at fault, not the clients."""
    kinds = {(missing.code, missing.reason.partition(":")[0]) for missing in answers.missing}
    if answers.missing and len(kinds) == 1 and answers.missing[0].code in SHARED_CAUSE:
        first, count = answers.missing[0], len(answers.missing)
        who = f"all {count} clients failed in the same way" if count > 1 else "the only selected client failed"
        problem = f"{who}: {first.code} {first.reason}"
        raise FedfewError("E512", "first round", problem[:400])


def received_bytes(reply: Mapping[str, object]) -> int:
    """Received bytes of a reply, which may hold anything."""
    if not isinstance(reply, Mapping):
        return 0
    return nbytes({name: tensor for name, tensor in reply.items() if isinstance(tensor, Tensor)})


def select(
    clients: Clients, algorithm: Method, fleet: Fleet, state: ServerState
) -> tuple[dict[int, Payload], dict[int, Missing]]:
    """What is sent to each client of S_t, and which of them will drop out.

    S_t is drawn among all clients, or among those that a network can reach; the same draw if all can be reached.
    """
    online = fleet.online()
    if online is None:
        online = range(clients.count)
    size, how = min(clients.cohort, len(online)), clients.availability
    cohort = [online[i] for i in draw_cohort(clients.seed, state.round, len(online), size, how)]
    gone = drop_out(clients.seed, state.round, cohort, how.dropout)
    missing = {k: Missing(k, Refusal.DROPPED_OUT, "dropped out (simulated)") for k in sorted(gone)}
    return {k: algorithm.broadcast(state, k) for k in cohort}, missing


def cohort_size(participation: float, clients: int) -> int:
    """m = max(round(F·K), 1)."""
    return max(round(participation * clients), 1)


def draw_cohort(seed: int, round: int, clients: int, size: int, how: Availability) -> list[int]:
    """S_t: ``size`` different clients from the round's own stream, sorted; costs the same for any number of clients."""
    rng = numpy_stream(seed, "cohort", round)
    if how.kind == "uniform":
        return sorted(int(k) for k in rng.choice(clients, size, replace=False))
    if size * 10 > clients or how.exponent > 1:  # the m largest of log p + Gumbel noise: a draw without replacement
        keys = rng.gumbel(size=clients) - how.exponent * np.log(_ranks(seed, clients))
        return sorted(int(k) for k in np.argpartition(-keys, size - 1)[:size])
    shares = _zipf(seed, clients, how.exponent)
    chosen: dict[int, None] = {}
    while len(chosen) < size:  # few of many with a long tail: skipping repeats gives the same distribution
        k = int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))
        chosen[min(k, clients - 1)] = None
    return sorted(chosen)


@lru_cache(maxsize=2)
def _zipf(seed: int, clients: int, exponent: float) -> NDArray[np.float64]:
    """Cumulative shares of the clients."""
    cumulative: NDArray[np.float64] = np.cumsum(_ranks(seed, clients) ** -exponent)
    return cumulative


@lru_cache(maxsize=2)
def _ranks(seed: int, clients: int) -> NDArray[np.float64]:
    """The rank of each client, from 1: the first is available most often."""
    return 1 + numpy_stream(seed, "availability").permutation(clients).astype(np.float64)


def drop_out(seed: int, round: int, cohort: list[int], rate: float) -> set[int]:
    """The clients of the cohort that will not answer."""
    if not rate:
        return set()
    draws = numpy_stream(seed, "dropout", round).random(len(cohort))
    return {k for k, draw in zip(cohort, draws, strict=True) if draw < rate}
