"""One exchange with the clients: draw a cohort, send, collect, and let only sound updates through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedfew.core.types import Algorithm, ClientUpdate, Fleet, Missing, Payload, ServerSite, ServerState, nbytes
from fedfew.runtime.cohort import Availability, draw_cohort, drop_out
from fedfew.runtime.gate import Gate


@runtime_checkable
class CountsBytes(Protocol):
    """A method that sends less than its payload holds, because clients have part of it already."""

    def bytes_down(self, state: ServerState, client: int, payload: Payload) -> int: ...


@dataclass(frozen=True)
class Clients:
    """The population a run draws from, and what is let through of its answers."""

    seed: int
    count: int
    cohort: int
    availability: Availability = Availability()
    gate: Gate = Gate()
    sizes: Sequence[int] | None = None
    """Images of each client where the server knows them; a claim of more is refused."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What came of asking: who was asked, whose updates count, who is missing and why, and the traffic."""

    cohort: list[int]
    updates: list[ClientUpdate]
    missing: list[Missing]
    payloads: dict[int, Payload]
    bytes_down: int
    bytes_up: int


def ask(clients: Clients, algorithm: Algorithm, site: ServerSite, fleet: Fleet, state: ServerState) -> Answers:
    """Every update in the result has passed the gate; the order is that of the clients, whatever order they came in."""
    if not algorithm.asks_clients:
        return Answers([], [], [], {}, 0, 0)
    t = state.round
    cohort = draw_cohort(clients.seed, t, clients.count, clients.cohort, clients.availability)
    gone = drop_out(clients.seed, t, cohort, clients.availability.dropout)
    payloads = {k: algorithm.broadcast(state, k) for k in cohort}
    down = sum(
        algorithm.bytes_down(state, k, payload) if isinstance(algorithm, CountsBytes) else nbytes(payload)
        for k, payload in payloads.items()
    )
    schema = algorithm.reply_schema(site.network.layout)
    updates: dict[int, ClientUpdate] = {}
    missing = {k: Missing(k, "E411", "dropped out (simulated)") for k in gone}
    up = 0
    for answer in fleet.train(t, {k: payload for k, payload in payloads.items() if k not in gone}):
        k = answer.client
        if k not in payloads or k in updates or k in missing:
            continue  # nobody asked, or it has answered already
        if isinstance(answer, Missing):
            missing[k] = answer
            continue
        up += nbytes(answer.reply)
        size = None if clients.sizes is None else int(clients.sizes[k])
        fault = clients.gate.check(answer, payloads[k], schema, size)
        if fault is None:
            updates[k] = answer
        else:
            missing[k] = fault
    by_client = sorted(updates)
    return Answers(cohort, [updates[k] for k in by_client], [missing[k] for k in sorted(missing)], payloads, down, up)
