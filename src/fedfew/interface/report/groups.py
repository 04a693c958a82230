"""Runs that differ in their seeds alone, taken together: a row of the comparison and a curve with its spread."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from fedfew.interface.charts import COLOURS, Figure, Lines, Series
from fedfew.interface.charts.scale import amount
from fedfew.interface.report.facts import Facts


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over n runs; one run has no deviation."""

    mean: float
    sd: float | None
    n: int

    @staticmethod
    def of(values: Sequence[float | None]) -> "Spread | None":
        known = [v for v in values if v is not None]
        if not known:
            return None
        return Spread(mean(known), stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one config with different seeds."""

    label: str
    runs: tuple[Facts, ...]

    def spread(self, which: Callable[[Facts], float | None]) -> Spread | None:
        return Spread.of([which(run) for run in self.runs])

    def accuracy(self, which: str) -> Spread | None:
        return self.spread(lambda run: run.accuracy[which])

    @property
    def unfinished(self) -> int:
        return sum(run.state != "finished" for run in self.runs)


def group(runs: Sequence[Facts]) -> list[Group]:
    """Groups by config without seeds and fleet, best first; a label names what sets a group apart."""
    together: dict[str, list[Facts]] = {}
    for run in runs:
        together.setdefault(json.dumps(_flat(run), sort_keys=True), []).append(run)
    settings = [_flat(found[0]) for found in together.values()]
    made = [
        Group(_label(found[0], own, settings), tuple(sorted(found, key=lambda r: r.seed)))
        for found, own in zip(together.values(), settings, strict=True)
    ]
    return sorted(made, key=lambda g: -(s.mean if (s := g.accuracy("mean_last_10")) else 0.0))


def _flat(run: Facts) -> dict[str, Any]:
    """The config as dotted keys, without what may differ between the runs of a group."""
    flat: dict[str, Any] = {}
    for key, value in run.config.items():
        if key == "fleet":
            continue
        flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return {key: value for key, value in flat.items() if key not in ("seed", "dataset.seed")}


def _label(run: Facts, own: dict[str, Any], settings: Sequence[dict[str, Any]]) -> str:
    """Method (and aggregator, where more than one is used), and up to three keys that tell groups of it apart."""
    alike = [s for s in settings if s["method.name"] == run.method]
    several = len({s["aggregator.name"] for s in alike}) > 1
    label = f"{run.method} + {run.aggregator}" if several else run.method
    rivals = [s for s in alike if s["aggregator.name"] == run.aggregator]
    apart = [key for key in own if any(s.get(key) != own[key] for s in rivals)]
    ends = [key.rpartition(".")[2] for key in own]
    shown = [f"{end if ends.count(end := key.rpartition('.')[2]) == 1 else key} {own[key]}" for key in apart[:3]]
    return ", ".join([label, *shown, *(["…"] if len(apart) > 3 else [])])


def overlay(groups: Sequence[Group]) -> list[Figure]:
    """One curve for each group, the mean over its runs with a band of one standard deviation."""
    drawn: list[Figure] = [
        _curves(groups, "accuracy", "Accuracy", "accuracy", "percent"),
        _curves(groups, "loss", "Loss on the test set", "cross-entropy", "number"),
    ]
    voting = [g for g in groups if any(r["coverage"] is not None for run in g.runs for r in run.records)]
    if voting:
        drawn.append(_curves(voting, "coverage", "Pseudo-labels: coverage", "share", "percent", groups))
        drawn.append(_curves(voting, "correct", "Pseudo-labels: correct among them", "share", "percent", groups))
    return drawn


def _curves(
    groups: Sequence[Group], key: str, title: str, axis: str, unit: Any, palette: Sequence[Group] | None = None
) -> Lines:
    series, words = [], []
    for g in groups:
        by_round: dict[int, list[float | None]] = {}
        for run in g.runs:
            for r in run.records:
                by_round.setdefault(r["round"], []).append(r[key])
        spreads = [(n, Spread.of(values)) for n, values in sorted(by_round.items())]
        series.append(
            Series(
                g.label,
                [float(n) for n, _ in spreads],
                [s.mean if s else None for _, s in spreads],
                place := list(palette or groups).index(g),
                "line" if place < COLOURS else "dashed",
                spread=[s.sd if s else None for _, s in spreads],
            )
        )
        last = next((s for _, s in reversed(spreads) if s), None)
        words.append(f"{g.label} ends at {amount(last.mean if last else None, unit)}")
    return Lines(key, title, "round", axis, series, unit, about="; ".join(words) + ".")
