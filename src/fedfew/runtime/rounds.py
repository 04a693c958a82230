"""The round loop: the only one, for every method and every fleet. Callers pull rounds from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch

from fedfew.core.errors import FedfewError
from fedfew.core.evaluation import Evaluation
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, Fleet, Method, Missing, ServerSite, ServerState
from fedfew.runtime.exchange import Clients, ask, refuse_common_fault
from fedfew.runtime.record import NO_UPDATE, RoundRecord, describe
from fedfew.runtime.wire import Wire

EVERY_ROUND = Evaluation()


def run_rounds(
    clients: Clients,
    algorithm: Method,
    site: ServerSite,
    fleet: Fleet,
    state: ServerState,
    rounds: int,
    max_skipped: int = 10,
    evaluation: Evaluation = EVERY_ROUND,
) -> Iterator[tuple[ServerState, RoundRecord]]:
    """The rounds from ``state`` up to ``rounds``, one by one; every state that is yielded is complete, to be stored."""
    clock, skipped, wire = Clock(), 0, Wire(algorithm, clients.transforms)
    wire.check(site)

    def train_server(now: ServerState) -> ServerState:
        with clock("server"):
            return algorithm.before_clients(now, site, stream(clients.seed, "server", now.round))

    trained = train_server(state) if state.round < rounds else state
    while state.round < rounds:
        t = state.round
        with clock("clients"):
            answers = ask(clients, algorithm, site, fleet, trained)
        with clock("aggregate"):
            refused = count_refused(trained, answers.missing)
            if answers.updates or not algorithm.asks(trained):
                participation = count(trained, answers.updates)
                counted = replace(trained, participation=participation, refused=refused, weights={}, metrics={})
                state = algorithm.after_clients(counted, answers.updates, site, stream(clients.seed, "aggregate", t))
                state = wire.after_round(state, site)
            else:
                if trained.unheard:
                    refuse_common_fault(answers)
                state = replace(state, refused=refused, weights={}, metrics={})  # nobody answered: ω stays
        clients_made, ema = state.clients, evaluation.mean(state.ema, state.omega)
        state = replace(state, round=t + 1, clients=None, ema=ema)
        seconds = clock.take("server", "clients", "aggregate")

        differs = clients_made is not None and not torch.equal(clients_made, state.evaluated)
        scoring = fleet.score(state.evaluated, clients_made if differs and evaluation.clients else None)
        # where the server's turn comes first, it trains for the next round while a free worker scores this one
        ahead = train_server(state) if state.round < rounds else state
        with clock("evaluate"):
            scores = scoring.result()
        state = replace(state, validation=(*state.validation, scores.validation or 0.0))
        if clients_made is not None and not differs:
            scores = replace(scores, clients=scores.accuracy)
        record = describe(scores, state, trained, answers, seconds | clock.take("evaluate"), clients_made)
        del answers  # a large round's replies are let go of before the next one's come
        yield state, record

        trained = replace(ahead, validation=state.validation)
        skipped = skipped + 1 if record["skipped"] else 0
        if skipped >= max_skipped:
            raise FedfewError("E501", f"round {t + 1}", f"{skipped} rounds in a row had no usable update")


def count(state: ServerState, updates: list[ClientUpdate]) -> dict[int, int]:
    """How often each client's update was used, this round counted."""
    return state.participation | {u.client: state.participation.get(u.client, 0) + 1 for u in updates}


def count_refused(state: ServerState, missing: list[Missing]) -> dict[int, int]:
    """How often each client's update was refused, this round counted; a client that gave none was not refused."""
    refused = [m.client for m in missing if m.code not in NO_UPDATE]
    return state.refused | {k: state.refused.get(k, 0) + 1 for k in refused}


class Clock:
    """Where a round's time goes: adds up seconds under the name of a phase until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + perf_counter() - start

    def take(self, *phases: str) -> dict[str, float]:
        """The seconds of these phases, which start again at zero."""
        return {phase: round(self._seconds.pop(phase, 0.0), 4) for phase in phases}
