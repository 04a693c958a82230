"""What runs reached, read from their folders: the common ground of comparisons, figures and claims."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.runs.folder import CONFIG, ENVIRONMENT
from fedfew.runs.run import Run
from fedfew.runs.summary import accuracies

WHICH = "mean_last_10"
"""The accuracy that tables and claims go by: no lucky round counts, and the test set chooses nothing."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One run at one moment; ``config`` is its resolved config with the defaults of today for keys it does not have."""

    path: Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    finished: bool
    environment: dict[str, Any]

    @property
    def seeds(self) -> tuple[int, int]:
        """Of training and of the split; runs with the same pair are compared image by image."""
        return int(self.config["seed"]), int(self.config["dataset"]["seed"])

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.records)

    @property
    def of(self) -> int:
        """Rounds the run is to have."""
        return int(self.config["rounds"])

    @property
    def seconds(self) -> float:
        """What the rounds took."""
        return float(sum(sum(r["seconds"].values()) for r in self.records))

    def cut(self, rounds: int) -> "Outcome":
        """The run as it was after so many rounds."""
        return replace(self, records=self.records[:rounds])

    def accuracy(self, which: str = WHICH) -> float | None:
        """last, mean_last_10 or best_by_validation."""
        return accuracies(self.records)[which]

    def curve(self) -> list[float]:
        """Test accuracy by round, not a number where there is none."""
        return [math.nan if r["accuracy"] is None else float(r["accuracy"]) for r in self.records]


def read_outcome(path: str | Path) -> Outcome:
    """The run in a folder, finished or not; E302 if there is none."""
    run = Run.open(path)
    try:
        around = json.loads((run.folder / ENVIRONMENT).read_text("utf-8"))
    except (OSError, ValueError):
        around = {}
    return Outcome(run.path, run.config.document, run.rounds, run.finished, around if isinstance(around, dict) else {})


def run_folders(places: Iterable[str | Path]) -> list[Path]:
    """The run folders named, or below the folders named; one that holds none is refused with E302."""
    found: dict[Path, None] = {}
    for place in map(Path, places):
        if (place / CONFIG).is_file():
            found[place] = None
            continue
        below = [p.parent for p in sorted(place.rglob(CONFIG)) if not _hidden(p.parent.relative_to(place))]
        if not below:
            what = "is not a run folder and has none below it" if place.exists() else "does not exist"
            raise FedfewError("E302", str(place), what)
        found |= dict.fromkeys(below)
    return list(found)


def _hidden(path: Path) -> bool:
    """Runs still being prepared stand in hidden folders."""
    return any(part.startswith(".") for part in path.parts)


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; a single value has no deviation."""
    return mean(values), stdev(values) if len(values) > 1 else None
