"""The rounds by fedfew: on a pool of processes, or inline with one thread or all of them."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from benchmarks.performance.workloads import Opened
from torch import Tensor

from fedfew.config.parts import Parts, assemble, local_fleet
from fedfew.core.environment import keep_freed_memory
from fedfew.core.layout import Payload
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, Fleet, Missing, Scoring, ServerState
from fedfew.runtime.exchange import ask
from fedfew.runtime.rounds import count


@dataclass(frozen=True, eq=False)
class OneByOne(Fleet):
    """A fleet that asks another one for a single client at a time and records how long each took."""

    fleet: Fleet
    seconds: list[float] = field(default_factory=list)

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        for client, payload in payloads.items():
            start = perf_counter()
            answers = list(self.fleet.train(round, {client: payload}))
            self.seconds.append(perf_counter() - start)
            yield from answers

    def score(self, omega: Tensor, clients: Tensor | None = None) -> Scoring:
        return self.fleet.score(omega, clients)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        return self.fleet.memory()

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        self.fleet.remember(memory)

    def close(self) -> None:
        self.fleet.close()


def round_of(parts: Parts, fleet: Fleet, state: ServerState, clients: int) -> tuple[float, list[ClientUpdate]]:
    """Seconds of one round with the first ``clients`` clients, and their updates: what the round loop does between
    the server's training and the scoring."""
    asked = replace(parts.clients, count=clients, cohort=clients)
    start = perf_counter()
    answers = ask(asked, parts.algorithm, parts.server, fleet, state)
    counted = replace(state, participation=count(state, answers.updates))
    parts.algorithm.after_clients(counted, answers.updates, parts.server, stream(asked.seed, "aggregate", state.round))
    seconds = perf_counter() - start
    if answers.missing:
        raise RuntimeError(f"{len(answers.missing)} clients gave no answer: {answers.missing[0].reason}")
    return seconds, answers.updates


def contest(opened: Opened, rounds: int, threads: int) -> dict[str, Any]:
    """Warm up, then time rounds; ``even`` is a round with one client less if their number is odd."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    parts, pool = assemble(opened.config), opened.config.fleet.kind == "pool"
    clients = opened.workload.clients
    even = clients - clients % 2
    with closing(local_fleet(parts)) as fleet:
        state = replace(parts.algorithm.start(opened.omega), sigma=opened.sigma)
        for _ in fleet.train(0, {k: parts.algorithm.broadcast(state, k) for k in opened.warm}):
            pass
        ready, seconds, evens, coverage = perf_counter(), [], [], []
        for t in range(rounds):
            marked = fleet if pool else OneByOne(fleet)
            took, updates = round_of(parts, marked, replace(state, round=t), clients)
            seconds.append(took)
            coverage += [update.metrics["coverage"] for update in updates]
            if isinstance(marked, OneByOne):  # one after another: leaving clients out also removes their time
                evens.append(took - sum(marked.seconds[even:]))
            else:
                evens.append(round_of(parts, fleet, replace(state, round=t), even)[0])
    result = {"ready": ready, "rounds": seconds, "even": evens, "threads": threads}
    return result | {"coverage": float(np.mean(coverage))}
