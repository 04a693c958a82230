"""Checks of a client's metrics: few, with plain names, finite, and with possible counts."""

import re
from collections.abc import Mapping

from fedfew.core.refusals import Refusal

Fault = tuple[Refusal, str]
"""Why an answer does not count: the reason, and in words."""
MOST_METRICS = 32
"""Metrics of a client besides the counts of its pseudo-labels by class."""
LARGEST_METRIC = 1e9
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}(/[a-z0-9_.-]{1,39})?")
_CLASS = re.compile(r"class/(0|[1-9][0-9]{0,6})")
_BOUNDS = {"coverage": 1.0, "status": 1.0, "steps": LARGEST_METRIC}
"""Metrics that lie between 0 and a bound; ``kept``, ``right`` and ``class/c`` count images."""


def metric_fault(metrics: object, images: int, classes: int | None) -> Fault | None:
    """None if the metrics may be recorded, else a code and why not.

    ``images``: how many a client has or claims; ``classes``: how many there are, where that is known.
    """
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        return Refusal.TOO_LARGE, "metrics are not a dict of numbers"
    by_class = [name for name in metrics if name.startswith("class/")]
    if len(metrics) - len(by_class) > MOST_METRICS or (classes is not None and len(by_class) > classes):
        return Refusal.TOO_LARGE, f"{len(metrics):,} metrics are too many"
    for name, value in metrics.items():
        if not _NAME.fullmatch(name) or (name in by_class and not _is_class(name, classes)):
            return Refusal.NAMES, "a metric has an invalid name"
        if not isinstance(value, float | int) or isinstance(value, bool) or not abs(value) <= LARGEST_METRIC:
            return Refusal.NOT_FINITE, f"metric {name} is {str(value)[:40]}"
        if name in _BOUNDS and not 0 <= value <= _BOUNDS[name]:
            return Refusal.NOT_FINITE, f"metric {name} is {value:g}; 0 to {_BOUNDS[name]:g} is possible"
    return _count_fault(metrics, by_class, images)


def _is_class(name: str, classes: int | None) -> bool:
    match = _CLASS.fullmatch(name)
    return match is not None and (classes is None or int(match[1]) < classes)


def _count_fault(metrics: Mapping[str, float], by_class: list[str], images: int) -> Fault | None:
    """Pseudo-labels are whole, at most one for each image, at most all of them right, and each of one class."""
    counts = {name: metrics[name] for name in ("kept", "right", *by_class) if name in metrics}
    for name, value in counts.items():
        if not 0 <= value <= images or value != int(value):
            return Refusal.COUNT, f"metric {name} is {value:g}; 0 to {images} is possible"
    kept = counts.get("kept", 0.0)
    if counts.get("right", 0.0) > kept or (by_class and sum(metrics[name] for name in by_class) != kept):
        return Refusal.COUNT, "the counts of pseudo-labels do not add up"
    return None
