"""The facts of a run, read from its folder without torch or the data: what reports and the live page are made of."""

import json
import os
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel

from fedfew.core.errors import FedfewError
from fedfew.interface.report.shapes import ROUNDS_SHAPE, Classes, Settings, Summary, Surroundings, check
from fedfew.runs.folder import CLASSES, CONFIG, ENVIRONMENT, PARTITION, ROUNDS, SUMMARY, RunFolder
from fedfew.runs.summary import accuracies

State = Literal["starting", "running", "finished", "stopped"]
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Facts:
    """A run as it is on the disk at one moment."""

    path: Path
    name: str
    config: dict[str, Any]
    records: list[Record]
    environment: dict[str, Any]
    classes: dict[str, Any]
    summary: dict[str, Any]
    state: State

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def aggregator(self) -> str:
        return str(self.config["aggregator"]["name"])

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have; ``len(records)`` are done."""
        return int(self.config["rounds"])

    @property
    def title(self) -> str:
        """Method and, where clients are asked, how their updates are joined."""
        return self.method if self.method in BOUNDS else f"{self.method} + {self.aggregator}"

    @cached_property
    def accuracy(self) -> dict[str, float | None]:
        """Last round, mean of the last ten, and at the round where validation was best."""
        return accuracies(self.records)

    @property
    def best_round(self) -> int | None:
        """The round where validation was best."""
        judged = [r for r in self.records if r["validation"] is not None]
        return max(judged, key=lambda r: r["validation"])["round"] if judged else None

    @property
    def seconds(self) -> float:
        """What the rounds so far took."""
        return float(sum(sum(r["seconds"].values()) for r in self.records))

    @property
    def seconds_left(self) -> float | None:
        """What the rounds to come will take if they go on as the last ten did."""
        if self.state != "running" or not self.records:
            return None
        last = [sum(r["seconds"].values()) for r in self.records[-10:]]
        return float(sum(last) / len(last) * (self.rounds - len(self.records)))

    @property
    def mix(self) -> dict[str, float]:
        """α, β, γ where the method has them."""
        return {n: self.config["method"][n] for n in ("alpha", "beta", "gamma") if n in self.config["method"]}

    @property
    def scenario(self) -> str:
        """What two runs must share for their accuracies to stand beside each other; seeds aside."""
        shared = {key: self.config.get(key) for key in ("rounds", "clients", "labels", "partition", "model")}
        shared["dataset"] = {key: value for key, value in self.config["dataset"].items() if key != "seed"}
        return json.dumps(shared, sort_keys=True)


BOUNDS = ("server-only", "all-labels")


def read_facts(path: str | Path, name: str = "") -> Facts:
    """The run in a folder; E302 if there is none, E309 if a file is not what a run writes."""
    folder = RunFolder.open(path)
    config = _config(folder)
    records = folder.records()
    check(ROUNDS_SHAPE, records, str(folder / ROUNDS))
    summary = _json(folder / SUMMARY, Summary)
    return Facts(
        path=folder.path,
        name=name or folder.path.resolve().name,
        config=config,
        records=records,
        environment=_json(folder / ENVIRONMENT, Surroundings) or {},
        classes=_json(folder / CLASSES, Classes) or {},
        summary=summary or {},
        state=_state(folder, records, summary is not None and len(records) >= config["rounds"]),
    )


def _config(folder: RunFolder) -> dict[str, Any]:
    place = folder / CONFIG
    try:
        config = tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FedfewError("E309", str(place), f"is damaged ({error})") from None
    check(Settings, config, str(place))
    return config


def _json(path: Path, shape: type[BaseModel]) -> Any:
    """What a file of the folder holds; None if it is not there (yet)."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FedfewError("E309", str(path), f"is damaged ({error})") from None
    check(shape, content, str(path))
    return content


def _state(folder: RunFolder, records: Sequence[Record], finished: bool) -> State:
    held = lock_held(folder / "lock")
    if held is None:  # the system does not tell: go by the time since the last round
        pace = median(sum(r["seconds"].values()) for r in records) if records else 60.0
        newest = max((p.stat().st_mtime for p in (folder / ROUNDS, folder / PARTITION) if p.exists()), default=0.0)
        held = time.time() - newest < 30 + 5 * pace
    if finished:
        return "finished"
    if held:
        return "running" if records else "starting"
    return "stopped"


def lock_held(path: Path) -> bool | None:
    """Whether a process holds this lock file, found without touching the lock; None where the system does not say."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return False  # no process has worked on the run yet
    try:
        table = Path("/proc/locks").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in table.splitlines())


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below a folder, by name; hidden folders (runs being prepared) and links are left out."""
    found = []
    for place, below, files in os.walk(folder):
        if CONFIG in files:
            found.append(Path(place))
            below.clear()
        below[:] = [name for name in below if not name.startswith(".")]
    return sorted(found)


def read_all(folder: Path) -> tuple[list[Facts], list[FedfewError]]:
    """Every run at or below a folder, and the faults of those that cannot be read."""
    facts: list[Facts] = []
    faults: list[FedfewError] = []
    for path in find_runs(folder):
        name = str(path.relative_to(folder))
        try:
            facts.append(read_facts(path, path.resolve().name if name == "." else name))
        except FedfewError as fault:
            faults.append(fault)
    return facts, faults


@dataclass(frozen=True)
class Bound:
    """What a bound reached in the same scenario, averaged over its runs; none of them: nothing is known."""

    name: str
    runs: tuple[Facts, ...]
    same_seed: bool

    def accuracy(self, which: str = "mean_last_10") -> float | None:
        known = [a for run in self.runs if (a := run.accuracy[which]) is not None]
        return sum(known) / len(known) if known else None

    @property
    def unfinished(self) -> bool:
        return any(len(run.records) < run.rounds for run in self.runs)


def bounds_of(run: Facts, others: Sequence[Facts]) -> list[Bound]:
    """Server-only and all-labels in the same scenario: the run of the same seeds if there is one, else all of them."""
    found = []
    for name in BOUNDS:
        alike = [
            o
            for o in others
            if o.method == name and o.scenario == run.scenario and o.path.resolve() != run.path.resolve()
        ]
        same = [o for o in alike if _seeds(o) == _seeds(run)]
        found.append(Bound(name, tuple(same[:1] or alike), bool(same)))
    return found


def _seeds(run: Facts) -> tuple[int, Any]:
    return run.seed, run.config["dataset"].get("seed")
