"""A run compared with its bounds: accuracies as bars with intervals, or why there is no comparison."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedfew.runs.intervals import Interval, of_accuracy
from fedfew.runs.run import NAMES, Run
from fedfew.studies.bounds import BASELINE, LOWER, Bound

WORDS = {
    BASELINE: "server-only: the labels alone",
    NAMES: "labels-names: labels, class names",
    "all-labels": "all-labels: FedAvg, true labels",
    "pooled": "pooled: everything, true labels",
}


@dataclass(frozen=True)
class Bar:
    """An accuracy with its 95 % interval, over the test images or over seeds."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    own: bool = False
    note: str = ""

    @property
    def interval(self) -> str:
        """[66.9, 75.2], empty if there is none."""
        return "" if self.low is None or self.high is None else f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"


def standing(run: Run, bounds: Sequence[Bound]) -> list[Bar]:
    """The labels alone, this run, and what more labels would reach; empty if there is nothing to compare with."""
    own, bars = run.accuracy(), list[Bar]()
    for bound in bounds:
        if (value := bound.accuracy()) is not None and bound.name != run.method:
            note = ", ".join(filter(None, (progress(bound), bound.mismatch)))
            bars.append(_bar(WORDS[bound.name], value, bound.runs, note))
    if own is None or not bars:
        return []
    position = sum(bar.name in (WORDS[name] for name in LOWER) for bar in bars)
    bars.insert(position, _bar(f"this run: {run.title}", own, (run,), "" if run.finished else _reached(run), True))
    return bars


def _bar(name: str, value: float, runs: Sequence[Run], note: str, own: bool = False) -> Bar:
    low, high = (interval.low, interval.high) if (interval := _interval(runs)) else (None, None)
    return Bar(name, value, low, high, own, note)


def _interval(runs: Sequence[Run]) -> Interval | None:
    """Over the test images for one run, over the seeds for several; None before the end."""
    if any(not run.finished for run in runs):
        return None
    if len(runs) > 1:
        return Interval.known([run.accuracy() for run in runs])
    judged = runs[0].judged
    return None if judged is None else of_accuracy(judged.right, judged.groups)


def _reached(run: Run) -> str:
    return f"not finished, round {run.done} of {run.planned}"


def progress(bound: Bound) -> str:
    """How far a bound's runs are, if one of them has not finished."""
    return next((_reached(run) for run in bound.runs if not run.finished), "")


def no_verdict(run: Run, bounds: Sequence[Bound]) -> str:
    """Why it is unknown what the clients' images add; empty if the question does not arise yet."""
    lower = next((bound for bound in bounds if bound.name == BASELINE), None)
    if run.method in LOWER or lower is None or not run.finished:
        return ""
    start = "What the clients' data add is not known:"
    if not lower.runs:
        return f"{start} there is no server-only run in the same folder."
    if note := progress(lower):
        return f"{start} the server-only run in the same folder is {note}."
    if not lower.same_seed:
        return f"{start} the server-only runs in the same folder have other seeds."
    if lower.differs:
        return f"{start} the server-only run in the same folder differs in {', '.join(lower.differs)}."
    return ""
