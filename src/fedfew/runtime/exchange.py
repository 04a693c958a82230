"""One exchange with the clients: select a cohort, send, collect, and pass on only valid updates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout
from fedfew.core.spill import ReplySpill
from fedfew.core.types import ClientUpdate, Method, Missing, Payload, ServerSite, ServerState, Transform, nbytes
from fedfew.runtime.cohort import Availability, draw_cohort, drop_out
from fedfew.runtime.gate import Gate
from fedfew.runtime.screen import Finding, Screen
from fedfew.runtime.wire import Wire


@runtime_checkable
class CountsBytes(Protocol):
    """A method that sends less than its payload holds, because clients already have part of it."""

    def bytes_down(self, state: ServerState, client: int, payload: Payload) -> int: ...


@runtime_checkable
class Network(Protocol):
    """A fleet of real sites: it knows who can be reached, and the real traffic."""

    def online(self) -> list[int]: ...

    def traffic(self) -> dict[str, int]: ...


class Trains(Protocol):
    """The part of a fleet that an exchange needs: clients that train."""

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterable[ClientUpdate | Missing]: ...


UNUSED = ("E413", "E414")
"""Answers that came too late or twice: listed in the record, but not part of the round they came in."""


OF_THE_CONFIG = ("E401", "E402", "E403", "E405", "E408", "E417", "E419")
"""Faults that do not depend on a client's images or machine: if all clients of the first round share one, E512."""


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


def ask(clients: Clients, algorithm: Method, site: ServerSite, fleet: Trains, state: ServerState) -> Answers:
    """Every update in the result has passed the gate; they are in the order of the clients, not of arrival."""
    if not algorithm.asks(state):
        return Answers([], [], [], {}, 0, 0, lengths=state.screen.lengths)
    t = state.round
    cohort = draw(clients, fleet, t)
    gone = drop_out(clients.seed, t, cohort, clients.availability.dropout)
    payloads = {k: algorithm.broadcast(state, k) for k in cohort}
    down = _bytes_down(algorithm, state, payloads)
    wire = Wire(algorithm, clients.transforms)
    check = checker(clients, wire, site.network.layout, site.classes)
    screen = Screen.of(clients.gate, wire, site, state)
    findings: dict[int, Finding] = {}
    updates: dict[int, ClientUpdate] = {}
    missing = {k: Missing(k, "E411", "dropped out (simulated)") for k in gone}
    unused: list[Missing] = []
    spill, up = ReplySpill(), 0
    for answer in fleet.train(t, {k: payload for k, payload in payloads.items() if k not in gone}):
        k = answer.client
        if isinstance(answer, Missing) and answer.code in UNUSED:
            unused.append(answer)
            continue
        if k not in payloads or k in updates or k in missing:
            unused.append(
                Missing(k, "E414", "answered again") if k in payloads else Missing(k, "E415", "was not selected")
            )
            continue
        if isinstance(answer, Missing):
            missing[k] = answer
            continue
        up += received_bytes(answer.reply)
        checked = check(answer, payloads[k])
        if isinstance(checked, Missing):
            missing[k] = checked
        else:
            findings[k] = screen.look(checked.reply, payloads[k])
            updates[k] = replace(checked, reply=spill.put(checked.reply))
    verdict = screen.judge(findings)
    for k, factors in verdict.scaled.items():
        updates[k] = replace(updates[k], reply=spill.put(screen.shrunk(updates[k].reply, payloads[k], factors)))
    missing |= verdict.refused
    updates = {k: update for k, update in updates.items() if k not in missing}
    counted = screen.overstated(updates) if clients.sizes is None else {}
    updates |= counted
    missing |= {k: Missing(k, "E410", "gave no answer") for k in cohort if k not in updates and k not in missing}
    if 0 < len(updates) < clients.min_updates:
        what = f"answered, but only {len(updates)} of min_updates = {clients.min_updates} did"
        missing |= {k: Missing(k, "E418", what) for k in updates}
        updates = {}
    usable, lacking = [updates[k] for k in sorted(updates)], [missing[k] for k in sorted(missing)]
    traffic = fleet.traffic() if isinstance(fleet, Network) else {}
    scaled = {k: min(verdict.scaled[k].values()) for k in sorted(verdict.scaled) if k in updates}
    most = {k: update.examples for k, update in counted.items() if k in updates}
    return Answers(
        cohort, usable, lacking, payloads, down, up, unused, traffic, site.classes, scaled, most, verdict.lengths
    )


def checker(
    clients: Clients, wire: Wire, layout: Layout, classes: int | None = None
) -> Callable[[ClientUpdate, Payload], ClientUpdate | Missing]:
    """Turns an answer into the update that the method expects, or into the reason it is refused.

    An answer is checked as received and, where a transform has encoded it, again after decoding.
    """
    *_, travels = schemas = wire.schemas(layout)
    decodes = any(type(transform).decode is not Transform.decode for transform in wire.transforms)

    def check(update: ClientUpdate, payload: Payload) -> ClientUpdate | Missing:
        size = None if clients.sizes is None else int(clients.sizes[update.client])
        fault = clients.gate.check(update, payload, travels, size, classes)
        if fault is not None or not decodes:
            return fault or update
        decoded = wire.decode(update, payload, layout)
        return clients.gate.check(decoded, payload, schemas[0], size, classes) or decoded

    return check


def refuse_common_fault(answers: Answers) -> None:
    """E512 if every client of a round failed in the same way: then the configuration is at fault, not the clients."""
    kinds = {(missing.code, missing.reason.partition(":")[0]) for missing in answers.missing}
    if answers.missing and len(kinds) == 1 and answers.missing[0].code in OF_THE_CONFIG:
        first, count = answers.missing[0], len(answers.missing)
        who = f"all {count} clients failed in the same way" if count > 1 else "the only selected client failed"
        what = f"{who}: {first.code} {first.reason}"
        raise FedfewError("E512", "first round", what[:400])


def _bytes_down(algorithm: Method, state: ServerState, payloads: Mapping[int, Payload]) -> int:
    if isinstance(algorithm, CountsBytes):
        return sum(algorithm.bytes_down(state, k, payload) for k, payload in payloads.items())
    return sum(map(nbytes, payloads.values()))


def received_bytes(reply: Mapping[str, object]) -> int:
    """Received bytes of a reply, which may hold anything."""
    if not isinstance(reply, Mapping):
        return 0
    return nbytes({name: tensor for name, tensor in reply.items() if isinstance(tensor, Tensor)})


def draw(clients: Clients, fleet: Trains, t: int) -> list[int]:
    """S_t among all clients, or among those that a network can reach; the same draw if all can be reached."""
    online = fleet.online() if isinstance(fleet, Network) else range(clients.count)
    size = min(clients.cohort, len(online))
    return [online[i] for i in draw_cohort(clients.seed, t, len(online), size, clients.availability)]
