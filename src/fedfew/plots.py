"""A run's charts as matplotlib figures, for notebooks and papers: ``fedfew.plots.accuracy(run)``.

They show the same numbers as the report and the live page. A run is a ``Run`` or the path of its folder.
"""

from pathlib import Path

from matplotlib.figure import Figure

from fedfew.core.errors import FedfewError
from fedfew.interface.charts import run_charts
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


def loss(run: Source, *others: Source) -> Figure:
    """Cross-entropy on the test images by round."""
    return draw(run_charts.loss(_opened(run), [_opened(other) for other in others]))


def confusion(run: Source) -> Figure:
    """True class × predicted class on the test images, after the last round."""
    return _drawn(run, "confusion")


def calibration(run: Source) -> Figure:
    """Reliability diagram: how often the final model is right at each confidence."""
    return _drawn(run, "calibration")


def pseudo_labels(run: Source) -> Figure:
    """Share of the clients' images with a confident label, and, in a simulation, how many of these are right."""
    return _drawn(run, "pseudo-labels")


def pseudo_classes(run: Source) -> Figure:
    """The newest round's pseudo-labels by class, next to the true classes of the clients that answered."""
    return _drawn(run, "pseudo-classes")


def participation(run: Source) -> Figure:
    """Client × round: the weight of every update that counted, and a mark for every one that did not."""
    return _drawn(run, "participation")


def partition(run: Source) -> Figure:
    """Client × class: the number of images each client holds; known in a simulation only."""
    return _drawn(run, "partition")


def norms(run: Source) -> Figure:
    """How far server, clients and model move in a round."""
    return _drawn(run, "norms")


def cosines(run: Source) -> Figure:
    """Cosine of each client's update with the server's."""
    return _drawn(run, "cosines")


def traffic(run: Source) -> Figure:
    """Bytes sent so far, up and down."""
    return _drawn(run, "traffic")


def times(run: Source) -> Figure:
    """Seconds of each round by phase."""
    return _drawn(run, "time")


def _opened(run: Source) -> Run:
    """The run as it is now."""
    opened = run.again() if isinstance(run, Run) else Run.open(run)
    if not opened.records:
        raise FedfewError("E310", str(opened.path), "has no round yet")
    return opened


def _drawn(run: Source, key: str) -> Figure:
    opened = _opened(run)
    for figure in run_charts.figures_of(opened):
        if figure.key == key:
            return draw(figure)
    fault = f"a run of {opened.method} on {opened.dataset} has no data for this chart"
    raise FedfewError("E310", str(opened.path), fault, f"The chart shows {key.replace('-', ' ')}")
