"""Intervals of means over seeds, and measures of a model's probabilities on labeled images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from fedfew.core.errors import FedfewError
from fedfew.runs.reading import RESUME

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
BINS = 10
"""Equally wide bins of confidence for calibration."""
DRAWS = 10_000
"""Bootstrap samples of the test images for an interval."""
BEYOND = 2.0
"""Standard errors on either side of a value whose error comes from elsewhere, such as the number of test images."""


@dataclass(frozen=True)
class Interval:
    """A mean over n values with its 95 % interval by Student's t; None if there is only one value."""

    mean: float
    sd: float | None
    n: int
    se: float | None
    low: float | None
    high: float | None
    partial: bool = False
    """Whether it comes from runs that have not finished."""

    @staticmethod
    def of(values: Sequence[float], each: float | None = None) -> "Interval":
        """The interval of some values; ``each`` is the least standard error of one, such as that of its test images.

        Two values that agree by chance are no more certain than that.
        """
        n, centre = len(values), fmean(values)
        sd = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1)) if n > 1 else None
        least = None if each is None else each / math.sqrt(n)
        se, half = least, None if least is None else BEYOND * least
        if sd is not None:
            spread = sd / math.sqrt(n)
            se, half = max(spread, least or 0.0), max(_student(n) * spread, half or 0.0)
        low, high = (None, None) if half is None else (centre - half, centre + half)
        return Interval(centre, sd, n, se, low, high)

    @staticmethod
    def known(values: Sequence[float | None]) -> "Interval | None":
        """The interval of the known values; None if there are none."""
        numbers = [value for value in values if value is not None]
        return Interval.of(numbers) if numbers else None

    def marked(self, partial: bool) -> "Interval":
        return replace(self, partial=partial)

    @property
    def significant(self) -> bool | None:
        """For a difference: whether the interval excludes zero; None if there is no interval."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


@cache
def _student(n: int) -> float:
    """How many standard errors of ``n`` values make half of a 95 % interval: the 0.975 quantile of Student's t."""
    from scipy.special import stdtrit  # a run is read without it

    return float(stdtrit(n - 1, 0.975))


@dataclass(frozen=True, eq=False)
class Judged:
    """A model's probabilities N×C for images whose classes are known."""

    labels: Labels
    probabilities: Floats

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the most likely class is the true one."""
        right: NDArray[np.bool_] = self.probabilities.argmax(1) == self.labels
        return right

    @staticmethod
    def joined(parts: Sequence["Judged"]) -> "Judged":
        """The results of several folds, joined."""
        return Judged(np.concatenate([p.labels for p in parts]), np.concatenate([p.probabilities for p in parts]))


def read_predictions(path: Path) -> Judged | None:
    """A finished run's probabilities for its test images; None if there are none."""
    try:
        arrays = load_arrays(path.read_bytes())
        labels, probabilities = arrays["labels"], arrays["probabilities"]
    except FileNotFoundError:
        return None
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise FedfewError("E309", str(path), f"is damaged ({error})", RESUME) from None
    fits = labels.ndim == 1 and probabilities.ndim == 2 and len(labels) == len(probabilities) > 0
    inside = fits and labels.dtype.kind == "i" and labels.min() >= 0 and labels.max() < probabilities.shape[1]
    if not inside or not np.isfinite(probabilities).all():
        raise FedfewError("E309", str(path), "is damaged (labels and probabilities do not fit)", RESUME)
    return Judged(labels.astype(np.int64), probabilities.astype(np.float64))


def evaluate(judged: Judged, classes: Sequence[str]) -> dict[str, Any]:
    """All measures, as in evaluation.json."""
    confusion = confusion_matrix(judged, len(classes))
    by_class = per_class(confusion)
    recalls = [row["recall"] for row in by_class if row["recall"] is not None]
    curve = calibration(judged)
    own = accuracy_interval(judged)
    return {
        "images": len(judged.labels),
        "accuracy": own.mean,
        "interval": [own.low, own.high],
        "balanced_accuracy": float(np.mean(recalls)) if recalls else None,
        "auroc": auroc(judged),
        "ece": expected_calibration_error(curve, len(judged.labels)),
        "classes": [{"class": name} | row for name, row in zip(classes, by_class, strict=True)],
        "confusion": confusion.tolist(),
        "calibration": curve,
    }


def confusion_matrix(judged: Judged, classes: int) -> NDArray[np.int64]:
    """Row: the true class, column: the predicted one."""
    pairs = judged.labels * classes + judged.probabilities.argmax(1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def per_class(confusion: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Images, precision and recall of each class; None if undefined."""
    hits, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    return [
        {
            "images": int(true[c]),
            "precision": float(hits[c] / predicted[c]) if predicted[c] else None,
            "recall": float(hits[c] / true[c]) if true[c] else None,
        }
        for c in range(len(confusion))
    ]


def auroc(judged: Judged) -> float | None:
    """Area under the ROC curve: of the second class if there are two, else the mean of each class against the others.

    From ranks (Mann and Whitney), ties counting half; classes without an image on both sides are left out.
    """
    width = judged.probabilities.shape[1]
    areas = [_area(judged.probabilities[:, c], judged.labels == c) for c in ([1] if width == 2 else range(width))]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else None


def _area(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return None
    _, rank, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[rank]  # the mean rank of ties
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def calibration(judged: Judged) -> list[dict[str, Any]]:
    """The reliability curve: mean confidence, share correct and images in each bin of confidence that has any."""
    confidence = judged.probabilities.max(1)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    right = judged.right
    return [
        {
            "confidence": float(confidence[bins == b].mean()),
            "accuracy": float(right[bins == b].mean()),
            "images": int((bins == b).sum()),
        }
        for b in range(BINS)
        if (bins == b).any()
    ]


def expected_calibration_error(curve: Sequence[dict[str, Any]], images: int) -> float | None:
    """ECE: the difference between confidence and accuracy, averaged over the images."""
    if not images:
        return None
    return float(sum(b["images"] * abs(b["confidence"] - b["accuracy"]) for b in curve) / images)


def accuracy_interval(judged: Judged) -> Interval:
    """Accuracy with its 95 % bootstrap interval over the images."""
    right = int(judged.right.sum())
    return _bootstrap(right, 0, len(judged.labels))


def paired_difference(first: Judged, second: Judged) -> Interval:
    """How much more accurate the first is on the same images, with its 95 % bootstrap interval over them."""
    gained = int((first.right & ~second.right).sum())
    lost = int((second.right & ~first.right).sum())
    return _bootstrap(gained, lost, len(first.labels))


def _bootstrap(plus: int, minus: int, images: int) -> Interval:
    """The mean of so many +1, −1 and otherwise 0: resampling the images draws from these three kinds."""
    shares = np.array([plus, minus, images - plus - minus]) / images
    drawn = np.random.default_rng(0).multinomial(images, shares, DRAWS)
    means = (drawn[:, 0] - drawn[:, 1]) / images
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval((plus - minus) / images, None, 1, float(means.std()), float(low), float(high))
