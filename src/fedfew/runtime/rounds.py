"""The round loop, the only one, for every method and every fleet: a generator of rounds."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from fedfew.core.errors import NO_UPDATE, FedfewError, raised_at
from fedfew.core.evaluation import NOT_SCORED, Evaluation
from fedfew.core.streams import stream
from fedfew.core.types import Fleet, Method, Missing, Outcome, Passes, ServerSite, ServerState, Updates
from fedfew.runtime.exchange import Answers, Clients, ask, nobody, refuse_common_fault
from fedfew.runtime.gate import finite
from fedfew.runtime.record import WARMUP, RoundRecord, describe
from fedfew.runtime.wire import Wire

EVERY_ROUND = Evaluation()
NUMERICAL = (ArithmeticError, LinAlgError, np.linalg.LinAlgError)
"""What computations raise for numbers that have no result, such as a singular matrix."""
_log = logging.getLogger(__name__)


def run_rounds(
    clients: Clients,
    algorithm: Method,
    site: ServerSite,
    fleet: Fleet,
    state: ServerState,
    rounds: int,
    max_skipped: int = 10,
    evaluation: Evaluation = EVERY_ROUND,
    passes: Passes | None = None,
) -> Iterator[tuple[ServerState, RoundRecord]]:
    """The rounds from ``state`` up to ``rounds``, one by one; every yielded state is complete and can be saved.

    ``passes`` tracks the warm-up before the first.
    """
    clock, skipped = Clock(), 0
    Wire(algorithm, clients.transforms).check(site)

    def train_server(now: ServerState) -> tuple[ServerState, str]:
        with clock("server"):
            rng = stream(clients.seed, "server", now.round)
            made, failure = computed(lambda: server_turn(algorithm, now, site, rng, passes), now)
        if passes:
            clock.warmed_up(*passes.take())
        if failure and not now.participation:
            raise FedfewError("E512", "first round", f"the server's own training failed: {failure}"[:400])
        return made, failure

    trained, failure = train_server(state) if state.round < rounds else (state, "")
    while state.round < rounds:
        t = state.round
        with clock("clients"):
            answers = nobody(state) if failure else ask(clients, algorithm, site, fleet, trained)
        with clock("aggregate"):
            if failure:
                outcome = Outcome(failure=f"the server's turn: {failure}")
            else:
                state, outcome = close_round(clients, algorithm, site, state, trained, answers)
        state = replace(state, round=t + 1, ema=evaluation.mean(state.ema, state.omega))
        seconds = clock.take("server", "clients", "aggregate") | clock.warmup()

        differs = outcome.clients is not None and not torch.equal(outcome.clients, state.evaluated)
        scoring = None
        if evaluation.due(state.round, rounds):
            scoring = fleet.score(state.evaluated, outcome.clients if differs and evaluation.clients else None)
        # where the server's turn comes first, it trains for the next round while a free worker scores this one
        ahead, failure = train_server(state) if state.round < rounds else (state, "")
        with clock("evaluate"):
            scores = scoring() if scoring else NOT_SCORED
        known = state.validation[-1] if scoring is None and state.validation else 0.0  # kept until the next score
        state = replace(state, validation=(*state.validation, scores.validation or known))
        if scoring and outcome.clients is not None and not differs:
            scores = replace(scores, clients=scores.accuracy)
        record = describe(scores, state, trained, answers, outcome, seconds | clock.take("evaluate"))
        del answers  # a large round's replies are freed before the next one's arrive
        yield state, record

        trained = replace(ahead, validation=state.validation)
        skipped = skipped + 1 if record["skipped"] else 0
        if skipped >= max_skipped:
            cause = f"; the last: {record['failure']}" if "failure" in record else ""
            raise FedfewError("E501", f"round {t + 1}", f"{skipped} rounds in a row had no usable update{cause}")


def close_round(
    clients: Clients, algorithm: Method, site: ServerSite, state: ServerState, trained: ServerState, answers: Answers
) -> tuple[ServerState, Outcome]:
    """The state after the clients' answers: aggregated, or ``state`` if none could be used.

    ``trained`` is ``state`` after the server's turn before the clients.
    """
    refused = count_refused(trained, answers.missing)
    if not answers.updates and algorithm.asks(trained):
        if not trained.participation:
            refuse_common_fault(answers)
        return replace(state, refused=refused), Outcome()  # no client answered: ω stays
    used = count(trained, answers.used)
    counted = replace(trained, participation=used, refused=refused, lengths=answers.lengths)
    rng = stream(clients.seed, "aggregate", trained.round)
    outcome = Outcome()

    def aggregate() -> ServerState:
        nonlocal outcome
        made, outcome = algorithm.after_clients(counted, answers.updates, site, rng)
        return Wire(algorithm, clients.transforms).after_round(made, site)

    made, failure = computed(aggregate, replace(state, refused=refused))
    return made, Outcome(failure=failure) if failure else outcome


def computed(make: Callable[[], ServerState], before: ServerState) -> tuple[ServerState, str]:
    """The state that ``make`` gives; or the one before, and what could not be computed: a server survives numbers."""
    try:
        made = make()
    except NUMERICAL as error:
        _log.warning("a step could not be computed", exc_info=True)
        return before, raised_at(error)
    tensors = {"ω": made.omega, "σ": made.sigma} | made.extra
    known = {id(tensor) for tensor in (before.omega, before.sigma, *before.extra.values())}
    odd = [name for name, tensor in tensors.items() if id(tensor) not in known and not finite(tensor)]
    return (before, f"{', '.join(odd)}: not finite") if odd else (made, "")


def server_turn(
    algorithm: Method, state: ServerState, site: ServerSite, rng: torch.Generator, passes: Passes | None = None
) -> ServerState:
    """The server's turn before the clients: the warm-up, or a turn like any other.

    The warm-up comes before the first round, and again until a client has answered: a skipped round keeps nothing.
    """
    if not state.participation and (not state.round or algorithm.asks(state)):
        return algorithm.warm_up(state, replace(site, passes=passes), rng)
    return algorithm.before_clients(state, site, rng)


def count(state: ServerState, updates: Updates) -> dict[int, int]:
    """How often each client's update was used, including this round."""
    return state.participation | {u.client: state.participation.get(u.client, 0) + 1 for u in updates}


def count_refused(state: ServerState, missing: list[Missing]) -> dict[int, int]:
    """How often each client's update was refused, including this round; a client that sent none was not refused."""
    refused = [m.client for m in missing if m.code not in NO_UPDATE]
    return state.refused | {k: state.refused.get(k, 0) + 1 for k in refused}


class Clock:
    """Where a round's time goes: sums the seconds of each phase until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + perf_counter() - start

    def warmed_up(self, here: float, in_all: float) -> None:
        """Count ``here`` of the server's seconds as warm-up, which took ``in_all`` with earlier processes."""
        if in_all:
            self._seconds["server"] -= here
            self._seconds[WARMUP] = self._seconds.get(WARMUP, 0.0) + in_all

    def warmup(self) -> dict[str, float]:
        """The seconds of a warm-up, if there was one."""
        return self.take(WARMUP) if WARMUP in self._seconds else {}

    def take(self, *phases: str) -> dict[str, float]:
        """The seconds of these phases, which are reset to zero."""
        return {phase: round(self._seconds.pop(phase, 0.0), 4) for phase in phases}
