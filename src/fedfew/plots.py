"""A run's charts as matplotlib figures, for notebooks and papers: ``fedfew.plots.accuracy(run)``.

They show the same numbers as the report and the live page. A run is a ``Run`` or the path of its folder.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from fedfew.core.errors import FedfewError
from fedfew.interface.charts import Figure as Chart
from fedfew.interface.charts.printed import draw
from fedfew.interface.report import figures
from fedfew.interface.report.facts import Facts, bounds_of, read_facts
from fedfew.runs.run import Run

__all__ = [
    "accuracy",
    "cosines",
    "loss",
    "norms",
    "participation",
    "partition",
    "pseudo_classes",
    "pseudo_labels",
    "times",
    "traffic",
]

Source = Run | str | Path


def accuracy(run: Source, *others: Source) -> Figure:
    """Test accuracy by round; with ``others`` several runs in one figure, server-only and all-labels as levels."""
    first, rest = _facts(run), [_facts(other) for other in others]
    bounds = [bound for bound in bounds_of(first, rest) if bound.runs]
    shown = {id(part) for bound in bounds for part in bound.runs}
    return draw(figures.accuracy(first, bounds, [other for other in rest if id(other) not in shown]))


def loss(run: Source, *others: Source) -> Figure:
    """Cross-entropy on the test images by round."""
    return draw(figures.loss(_facts(run), [_facts(other) for other in others]))


def pseudo_labels(run: Source) -> Figure:
    """Share of the clients' images with a confident label, and, in a simulation, how many of these are right."""
    return _drawn(run, figures.pseudo_labels, _labels)


def pseudo_classes(run: Source) -> Figure:
    """The newest round's pseudo-labels by class, beside what the clients that answered really hold."""
    return _drawn(run, figures.pseudo_classes, _labels)


def participation(run: Source) -> Figure:
    """Client × round: the weight of every update that counted, and a mark for every one that did not."""
    return _drawn(run, figures.participation, lambda facts: any(r["cohort"] for r in facts.records))


def partition(run: Source) -> Figure:
    """Client × class: who holds what; known in a simulation only."""
    return _drawn(run, figures.partition, lambda facts: bool(facts.classes.get("clients")))


def norms(run: Source) -> Figure:
    """How far server, clients and model move in a round."""
    return _drawn(run, figures.norms)


def cosines(run: Source) -> Figure:
    """Whether each client's update points where the server's does."""
    return _drawn(run, figures.cosines)


def traffic(run: Source) -> Figure:
    """Bytes sent so far, up and down."""
    return _drawn(run, figures.traffic)


def times(run: Source) -> Figure:
    """Seconds of each round by phase."""
    return _drawn(run, figures.phases)


def _facts(run: Source) -> Facts:
    facts = read_facts(run.path if isinstance(run, Run) else run)
    if not facts.records:
        raise FedfewError("E310", str(facts.path), "has no round yet")
    return facts


def _labels(facts: Facts) -> bool:
    return any(record["coverage"] is not None for record in facts.records)


def _drawn(run: Source, describe: Callable[[Facts], Chart], known: Callable[[Facts], bool] = bool) -> Figure:
    facts = _facts(run)
    if not known(facts):
        what = f"a run of {facts.method} on {facts.dataset} has nothing to draw here"
        raise FedfewError("E310", str(facts.path), what, f"It is about {describe.__name__.replace('_', ' ')}")
    return draw(describe(facts))
