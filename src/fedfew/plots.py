"""A run's charts as matplotlib figures, for notebooks and papers: ``fedfew.plots.accuracy(run)``.

They show the same numbers as the report and the live page. A run is a ``Run`` or the path of its folder.
"""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from fedfew.core.errors import FedfewError
from fedfew.interface.charts import Figure as Chart
from fedfew.interface.charts import evaluation_charts, run_charts
from fedfew.interface.charts.printed import draw
from fedfew.runs.run import Run
from fedfew.studies.bounds import bounds_of

__all__ = [
    "accuracy",
    "calibration",
    "confusion",
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
    first, rest = _opened(run), [_opened(other) for other in others]
    bounds = [bound for bound in bounds_of(first, rest) if bound.runs]
    shown = {id(part) for bound in bounds for part in bound.runs}
    return draw(run_charts.accuracy(first, bounds, [other for other in rest if id(other) not in shown]))


def confusion(run: Source) -> Figure:
    """True class × predicted class on the test images, after the last round."""
    return draw(evaluation_charts.confusion(_judged(run)))


def calibration(run: Source) -> Figure:
    """Reliability diagram: how often the final model is right at each confidence."""
    return draw(evaluation_charts.calibration(_judged(run)))


def _judged(run: Source) -> Run:
    opened = _opened(run)
    if not opened.evaluation:
        raise FedfewError("E310", str(opened.path), "has no evaluation: it has not finished, or has no test images")
    return opened


def loss(run: Source, *others: Source) -> Figure:
    """Cross-entropy on the test images by round."""
    return draw(run_charts.loss(_opened(run), [_opened(other) for other in others]))


def pseudo_labels(run: Source) -> Figure:
    """Share of the clients' images with a confident label, and, in a simulation, how many of these are right."""
    return _drawn(run, run_charts.pseudo_labels, _labels)


def pseudo_classes(run: Source) -> Figure:
    """The newest round's pseudo-labels by class, next to the true classes of the clients that answered."""
    return _drawn(run, run_charts.pseudo_classes, _labels)


def participation(run: Source) -> Figure:
    """Client × round: the weight of every update that counted, and a mark for every one that did not."""
    return _drawn(run, run_charts.participation, lambda opened: any(r["cohort"] for r in opened.records))


def partition(run: Source) -> Figure:
    """Client × class: the number of images each client holds; known in a simulation only."""
    return _drawn(run, run_charts.partition, lambda opened: bool(opened.classes.get("clients")))


def norms(run: Source) -> Figure:
    """How far server, clients and model move in a round."""
    return _drawn(run, run_charts.norms)


def cosines(run: Source) -> Figure:
    """Cosine of each client's update with the server's."""
    return _drawn(run, run_charts.cosines)


def traffic(run: Source) -> Figure:
    """Bytes sent so far, up and down."""
    return _drawn(run, run_charts.traffic)


def times(run: Source) -> Figure:
    """Seconds of each round by phase."""
    return _drawn(run, run_charts.phases)


def _opened(run: Source) -> Run:
    """The run as it is now."""
    opened = run.again() if isinstance(run, Run) else Run.open(run)
    if not opened.records:
        raise FedfewError("E310", str(opened.path), "has no round yet")
    return opened


def _labels(run: Run) -> bool:
    return any(record["coverage"] is not None for record in run.records)


def _drawn(run: Source, describe: Callable[[Run], Chart], known: Callable[[Run], bool] = bool) -> Figure:
    opened = _opened(run)
    if not known(opened):
        fault = f"a run of {opened.method} on {opened.dataset} has no data for this chart"
        raise FedfewError("E310", str(opened.path), fault, f"The chart shows {describe.__name__.replace('_', ' ')}")
    return draw(describe(opened))
