"""Accuracy against the number of labels, with and without the sites' images: a pair of runs for each number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.runs.run import Run
from fedfew.runs.statistics import Judged
from fedfew.studies.bounds import BASELINE
from fedfew.studies.sweep import Cell, located, slug
from fedfew.studies.verdict import Gain, baseline_of

MOST = 4
"""Numbers of labels to try if none are given."""


@dataclass(frozen=True, eq=False)
class PairOfCells:
    """The two runs of a number of labels, a seed and, without test images, a fold."""

    labels: int
    seed: int
    own: Cell
    base: Cell


def halves(labels: int, fewest: int) -> list[int]:
    """All labels, half of them, a quarter…: as many as make sense, in increasing order."""
    counts = [labels]
    while len(counts) < MOST and counts[0] // 2 >= max(fewest, 2):
        counts.insert(0, counts[0] // 2)
    return counts


def pairs(config: Config, labels: Sequence[int], seeds: int, folds: int = 0) -> list[PairOfCells]:
    """The runs to make; each seed draws other labels and trains again."""
    if config.method_name == BASELINE:
        why = "server-only training is one of the two curves already"
        raise FedfewError("E113", "method.name", why, "Name a method that uses the sites")
    held_out = [{"dataset.fold": f"{fold}/{folds}"} for fold in range(1, folds + 1)] or [{}]
    return [
        _pair(config, {"labels": count, "seed": seed, "dataset.seed": seed} | fold)
        for count in labels
        for seed in range(seeds)
        for fold in held_out
    ]


def _pair(config: Config, chosen: Mapping[str, Any]) -> PairOfCells:
    own, name = load(config.document, chosen), slug(chosen)
    method, base = own.method_name, baseline_of(own)
    return PairOfCells(
        chosen["labels"], chosen["seed"], Cell(f"{method}-{name}", own), Cell(f"{BASELINE}-{name}", base)
    )


def gains(runs: Sequence[PairOfCells], folder: Path) -> dict[int, Gain]:
    """What the sites' images bring with each number of labels."""
    paths = located([cell for pair in runs for cell in (pair.own, pair.base)], folder)
    by_labels: dict[int, dict[int, list[tuple[Judged, Judged]]]] = {}
    for i, pair in enumerate(runs):
        judged = _judged(paths[2 * i], pair.own), _judged(paths[2 * i + 1], pair.base)
        by_labels.setdefault(pair.labels, {}).setdefault(pair.seed, []).append(judged)
    return {labels: _gain(list(seeds.values())) for labels, seeds in sorted(by_labels.items())}


def _judged(path: Path | None, cell: Cell) -> Judged:
    judged = Run.open(path).judged if path else None
    if judged is None:
        why = "has no accuracy: it has not finished, or there are no test images"
        raise FedfewError("E310", cell.name, why, "Fill test/<class>/, or run the same command again to finish it")
    return judged


def _gain(seeds: list[list[tuple[Judged, Judged]]]) -> Gain:
    """With one seed the intervals are over the test images, with several over the seeds."""
    joined = [(Judged.joined([own for own, _ in part]), Judged.joined([base for _, base in part])) for part in seeds]
    if len(joined) == 1:
        return Gain.on_images(*joined[0])
    return Gain.over_seeds([(float(own.right.mean()), float(base.right.mean())) for own, base in joined])


def sentence(curve: Mapping[int, Gain]) -> str:
    """How many labels the sites' images are worth, as far as the curve shows."""
    most = max(curve)
    base = curve[most].base.mean
    enough = next((labels for labels, gain in curve.items() if gain.own.mean >= base), None)
    if enough is None:
        return f"With the sites' images the accuracy stays below that of {most} labels alone, {100 * base:.1f} %."
    reached = f"{enough} labels reach {100 * curve[enough].own.mean:.1f} %"
    return f"With the sites' images {reached}; {most} labels alone reach {100 * base:.1f} %."
