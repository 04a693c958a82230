"""Tiny runs of every method, and fleets that pass on, alter or remember the answers of another."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedfew.config.parts import Parts, assemble, local_fleet
from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.layout import Payload, Vector
from fedfew.core.types import ClientUpdate, Fleet, Missing, Scoring, ServerState
from fedfew.methods import METHODS
from fedfew.methods.fedmoments import share
from fedfew.objectives import OBJECTIVES
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, one_thread
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds

TINY: dict[str, Any] = {
    "seed": 1,
    "rounds": 2,
    "clients": 12,
    "participation": 0.25,
    "labels": 20,
    "dataset": {"name": "mini-mnist", "validation": 50, "test": 100, "unlabeled": 120, "seed": 0},
    "partition": {"kind": "dirichlet", "mu": 0.5, "skew": 0.5},
    "model": {"name": "cnn", "width": 4},
    "method": {"name": "fedmix", "threshold": 0.2},
    "server": {"batch": 10, "lr": 0.05},
    "client": {"batch": 10, "lr": 0.02},
    "fleet": {"kind": "inline"},
}

Answer = ClientUpdate | Missing


def tiny(**overrides: Any) -> Config:
    """The tiny config, with dotted keys spelled ``fleet__kind``."""
    return load(TINY, {key.replace("__", "."): value for key, value in overrides.items()})


def tiny_run(out: Path, **overrides: Any) -> Run:
    """A whole run of it."""
    return Experiment(tiny(**overrides)).run(out)


def records(run: Run | Path) -> list[dict[str, Any]]:
    """The rounds of a run without their seconds: what must be equal between runs."""
    path = run if isinstance(run, Path) else run.path
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text("utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def model_hash(run: Run | Path) -> str:
    """The SHA-256 of the final model as the summary tells it."""
    summary = json.loads(((run if isinstance(run, Path) else run.path) / "summary.json").read_text("utf-8"))
    return str(summary["model_sha256"])


def play(parts: Parts, fleet: Fleet, rounds: int, max_skipped: int = 10) -> list[tuple[ServerState, RoundRecord]]:
    """The rounds themselves, without a run folder."""
    start = parts.algorithm.start(parts.network.snapshot())
    with one_thread():
        return list(
            run_rounds(parts.clients, parts.algorithm, parts.server, fleet, start, rounds, max_skipped)
        )  # fmt: skip


def tiny_parts(**overrides: Any) -> tuple[Parts, Fleet]:
    """The tiny run's parts and its fleet; nobody needs to close an inline one."""
    parts = assemble(tiny(**overrides))
    return parts, local_fleet(parts)


@dataclass(eq=False)
class PassingFleet(Fleet):
    """A fleet that leaves everything to another one."""

    fleet: Fleet

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterable[Answer]:
        return self.fleet.train(round, payloads)

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        return self.fleet.score(omega, clients)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        return self.fleet.memory()

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        self.fleet.remember(memory)

    def close(self) -> None:
        self.fleet.close()


@dataclass(eq=False)
class AlteredFleet(PassingFleet):
    """A fleet whose answers pass through ``alter`` on their way to the server: reordered, damaged, dropped, doubled."""

    alter: Callable[[int, list[Answer]], Iterable[Answer]]

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterable[Answer]:
        return self.alter(round, list(self.fleet.train(round, payloads)))


@dataclass(eq=False)
class RememberingFleet(PassingFleet):
    """Trains and scores each thing once, so that a hundred runs that must agree cost little more than one."""

    _trained: dict[tuple[Any, ...], Answer] = field(default_factory=dict)
    _scored: dict[bytes, Any] = field(default_factory=dict)

    def train(self, round: int, payloads: Mapping[int, Payload]) -> list[Answer]:
        answers = []
        for client, payload in payloads.items():
            key = (round, client, *((name, t.numpy().tobytes()) for name, t in payload.items()))
            if key not in self._trained:
                self._trained[key] = next(iter(self.fleet.train(round, {client: payload})))
            answers.append(self._trained[key])
        return answers

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        key = omega.numpy().tobytes()
        if key not in self._scored:
            self._scored[key] = self.fleet.score(omega, clients)()
        return lambda: self._scored[key]


SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 3,
    "participation": 0.67,
    "dataset__unlabeled": 36,
    "dataset__test": 20,
    "dataset__validation": 20,
}
LOW: dict[str, dict[str, Any]] = {
    "fedmoments": {"model__name": "efficientnet-lite0", "model__size": 32},
    "labels-names": {"model__name": "efficientnet-lite0", "model__size": 32},
    "fedfew": {"method__warmup": 1, "method__threshold": 0.1},
    "ds-fl": {"method__subset": 20, "dataset__open": 60, "objective__threshold": 0.1},
    "fedmatch": {"method__interval": 1, "method__threshold": 0.1},
    "cbafed": {"method__highest": 0.1},
    "objective pi-model": {"objective__ramp": 0.0},
    "objective kl-consistency": {"objective__ramp": 0.0},
    "objective temporal-ensembling": {"objective__ramp": 0.0},
    "objective mean-teacher": {"objective__ramp": 0.0},
    "objective mixmatch": {"objective__ramp": 0.0},
}
LOW |= {name: {"method__threshold": 0.1} for name in ("fedmix", "fedmatch-lite", "semifl", "grouping")}
LOW |= {
    name: {"objective__threshold": 0.1} for name in ("fedavg", "fedprox", "fedbn", "fedadam", "fedyogi", "scaffold")
}
LOW |= {f"objective {name}": {"objective__threshold": 0.1} for name in ("pseudo-label", "uda", "fixmatch")}
"""Thresholds and ramps such that clients learn from the first round on."""
CASES: dict[str, dict[str, Any]] = {name: {"method__name": name} for name in METHODS}
CASES |= {f"objective {name}": {"method__name": "fedprox", "objective__name": name} for name in OBJECTIVES}
CASES = {name: settings | LOW.get(name, {}) for name, settings in CASES.items()} | {
    "label-shift": {"vote__prior": "em", "vote__warmup": 0.0},
    "server's statistics": {"method__anchor": "previous", "model__norm": "batch", "norm__policy": "server-data"},
    "own norms": {"model__norm": "batch", "norm__policy": "local", "server__augment": "strong"},
    "clipped": {"privacy__clip": 1.0},
    "compressed": {"compression__kind": "top-k"},
}


def few_fits(patch: pytest.MonkeyPatch | None = None) -> None:
    """Where only bits or devices matter, fedmoments cross-validates one share and penalty instead of many."""
    patch = patch or pytest.MonkeyPatch()
    patch.setattr(share, "SHARES", (0.5,))
    patch.setattr(share, "PENALTIES", (1.0,))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def gone(pids: Iterable[int], seconds: float = 20.0) -> bool:
    """Whether none of the processes is left after a while."""
    pids = list(pids)
    return eventually(lambda: not any(map(alive, pids)), seconds)


def open_files() -> int:
    """How many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
