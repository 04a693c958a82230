"""Accuracy against the number of labels, with and without the sites' images: a pair of runs for each number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfew.config.schema import Config, load
from fedfew.core.errors import FedfewError
from fedfew.runs.measures import Judged, accuracy_interval, paired_difference
from fedfew.runs.run import Run
from fedfew.runs.statistics import Interval
from fedfew.studies.bounds import BASELINE
from fedfew.studies.sweep import Cell, located, slug
from fedfew.studies.verdict import baseline_of

MOST = 4
"""Numbers of labels to try if none are given."""


@dataclass(frozen=True)
class Step:
    """Accuracy for a number of labels, with the sites' images and without, on the same test images."""

    labels: int
    own: Interval
    base: Interval
    difference: Interval

    def as_json(self) -> dict[str, Any]:
        spans = {"accuracy": self.own, "server_only": self.base, "difference": self.difference}
        return {"labels": self.labels} | {k: {"mean": s.mean, "low": s.low, "high": s.high} for k, s in spans.items()}


@dataclass(frozen=True, eq=False)
class Pair:
    """The two runs of a number of labels, a seed and, without test images, a fold."""

    labels: int
    seed: int
    own: Cell
    base: Cell


def halves(labels: int, fewest: int) -> list[int]:
    """All labels, half of them, a quarter…: as many as make sense, in increasing order."""
    found = [labels]
    while len(found) < MOST and found[0] // 2 >= max(fewest, 2):
        found.insert(0, found[0] // 2)
    return found


def pairs(config: Config, labels: Sequence[int], seeds: int, folds: int = 0) -> list[Pair]:
    """The runs to make; each seed draws other labels and trains again."""
    if config["method.name"] == BASELINE:
        what = "server-only training is one of the two curves already"
        raise FedfewError("E113", "method.name", what, "Name a method that uses the sites")
    held = [{"dataset.fold": f"{fold}/{folds}"} for fold in range(1, folds + 1)] or [{}]
    return [
        _pair(config, {"labels": count, "seed": seed, "dataset.seed": seed} | fold)
        for count in labels
        for seed in range(seeds)
        for fold in held
    ]


def _pair(config: Config, chosen: Mapping[str, Any]) -> Pair:
    own = load(config.document, chosen)
    base, name = baseline_of(own), slug(chosen)
    return Pair(
        chosen["labels"], chosen["seed"], Cell(f"{own['method.name']}-{name}", own), Cell(f"{BASELINE}-{name}", base)
    )


def steps(made: Sequence[Pair], folder: Path) -> list[Step]:
    """The results of the runs, by the number of labels."""
    places = located([cell for pair in made for cell in (pair.own, pair.base)], folder)
    by_labels: dict[int, dict[int, list[tuple[Judged, Judged]]]] = {}
    for i, pair in enumerate(made):
        own, base = _judged(places[2 * i], pair.own), _judged(places[2 * i + 1], pair.base)
        by_labels.setdefault(pair.labels, {}).setdefault(pair.seed, []).append((own, base))
    return [_step(labels, list(found.values())) for labels, found in sorted(by_labels.items())]


def _judged(path: Path | None, cell: Cell) -> Judged:
    found = Run.open(path).judged if path else None
    if found is None:
        what = "has no accuracy: it has not finished, or there are no test images"
        raise FedfewError("E310", cell.name, what, "Fill test/<class>/, or run the same command again to finish it")
    return found


def _step(labels: int, seeds: list[list[tuple[Judged, Judged]]]) -> Step:
    """With one seed the intervals are over the test images, with several over the seeds."""
    joined = [(Judged.joined([own for own, _ in part]), Judged.joined([base for _, base in part])) for part in seeds]
    if len(joined) == 1:
        own, base = joined[0]
        return Step(labels, accuracy_interval(own), accuracy_interval(base), paired_difference(own, base))
    shares = [(float(own.right.mean()), float(base.right.mean())) for own, base in joined]
    return Step(
        labels,
        Interval.of([own for own, _ in shares]),
        Interval.of([base for _, base in shares]),
        Interval.of([own - base for own, base in shares]),
    )


def sentence(found: Sequence[Step]) -> str:
    """How many labels the sites' images are worth, as far as the curve shows."""
    last = found[-1]
    enough = next((step for step in found if step.own.mean >= last.base.mean), None)
    if enough is None:
        return (
            f"With the sites' images the accuracy stays below that of {last.labels} labels alone, "
            f"{100 * last.base.mean:.1f} %."
        )
    return (
        f"With the sites' images {enough.labels} labels reach {100 * enough.own.mean:.1f} %; "
        f"{last.labels} labels alone reach {100 * last.base.mean:.1f} %."
    )
