"""Groups of runs that differ only in their seeds: a row of the comparison and a curve with its spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fedfew.interface.charts import COLOURS, Figure, Lines, Series
from fedfew.interface.charts.figure import Unit
from fedfew.interface.charts.run_charts import Curve
from fedfew.interface.charts.scale import amount
from fedfew.runs.run import Run
from fedfew.runs.statistics import Interval
from fedfew.runs.summary import HEADLINE, scored
from fedfew.studies.bounds import hashable, varying
from fedfew.studies.compare import SEEDS

MOST_CURVES = 12
"""Most groups whose curves are overlaid, the best ones; the table has all."""
MOST_SEEDS = 20
"""Most runs that make a group's curve: of thousands, the rounds need not be read."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one config with different seeds."""

    label: str
    runs: tuple[Run, ...]

    def over(self, which: Callable[[Run], float | None]) -> Interval | None:
        """A number of each run, with its interval over the runs."""
        return Interval.known([which(run) for run in self.runs])

    def accuracy(self, which: str = HEADLINE) -> Interval | None:
        return self.over(lambda run: run.accuracy(which))

    @property
    def unfinished(self) -> int:
        return sum(not run.finished for run in self.runs)


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups by config without seeds and fleet, best first; a label names what distinguishes a group."""
    flats = [run.flat for run in runs]
    differ = [key for key in varying(flats) if key not in SEEDS and not key.startswith("fleet.")]
    by_config: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        by_config.setdefault(tuple(hashable(run.flat, key) for key in differ), []).append(run)
    by_method: dict[tuple[str, str], list[Run]] = {}
    rules: dict[str, set[str]] = {}
    for run, *_ in by_config.values():
        by_method.setdefault((run.method, run.aggregator), []).append(run)
        rules.setdefault(run.method, set()).add(run.aggregator)
    distinct = {
        name: [key for key in varying([run.flat for run in members]) if key in differ]
        for name, members in by_method.items()
    }
    made = []
    for members in by_config.values():
        first = members[0]
        label = f"{first.method} + {first.aggregator}" if len(rules[first.method]) > 1 else first.method
        label = _label(label, first.flat, distinct[first.method, first.aggregator])
        made.append(Group(label, tuple(sorted(members, key=lambda run: run.seed))))
    return sorted(made, key=lambda g: -(own.mean if (own := g.accuracy()) else 0.0))


def _label(name: str, own: dict[str, Any], distinct: Sequence[str]) -> str:
    """The method and up to three settings that distinguish the group from others of that method."""
    ends = [key.rpartition(".")[2] for key in own]
    shown = [f"{end if ends.count(end := key.rpartition('.')[2]) == 1 else key} {own.get(key)}" for key in distinct[:3]]
    return ", ".join([name, *shown, *(["…"] if len(distinct) > 3 else [])])


def overlay(groups: Sequence[Group]) -> list[Figure]:
    """One curve for each of the best groups, the mean over its runs with a band of one standard deviation."""
    shown = [
        Group(g.label, runs)
        for g in groups[:MOST_CURVES]
        if (runs := tuple(islice((run for run in g.runs if run.fault is None), MOST_SEEDS)))
    ]
    more = f" The {MOST_CURVES} best of {len(groups)} groups are drawn." if len(groups) > MOST_CURVES else ""
    if any(len(g.runs) > MOST_SEEDS for g in groups[:MOST_CURVES]):
        more += f" Each curve uses the first {MOST_SEEDS} seeds."
    drawn: list[Figure] = [
        _curves(shown, "accuracy", "Accuracy", "accuracy", "percent", more),
        _curves(shown, "loss", "Loss on the test set", "cross-entropy", "number", more),
    ]
    if any(run.newest("coverage") is not None for g in shown for run in g.runs):
        drawn.append(_curves(shown, "coverage", "Pseudo-labels: coverage", "share", "percent", more))
        drawn.append(_curves(shown, "correct", "Pseudo-labels: correct among them", "share", "percent", more))
    return drawn


def _curves(groups: Sequence[Group], key: Curve, title: str, axis: str, unit: Unit, more: str) -> Lines:
    series, words = [], []
    for i, g in enumerate(groups):
        by_round: dict[int, list[float | None]] = {}
        for run in g.runs:
            for r in scored(run.records) if key in ("accuracy", "loss") else run.records:
                by_round.setdefault(r["round"], []).append(r[key])
        means = {n: known for n, values in sorted(by_round.items()) if (known := Interval.known(values))}
        if not means and key in ("coverage", "correct"):
            continue  # a method without pseudo-labels
        series.append(
            Series(
                g.label,
                [float(n) for n in sorted(by_round)],
                [means[n].mean if n in means else None for n in sorted(by_round)],
                i,
                "line" if i < COLOURS else "dashed",
                spread=[means[n].sd if n in means else None for n in sorted(by_round)],
            )
        )
        last = means[max(means)].mean if means else None
        words.append(f"{g.label} ends at {amount(last, unit)}")
    return Lines(key, title, "round", axis, series, unit, about="; ".join(words) + f".{more}")
