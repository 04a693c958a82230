"""Measures of a model's probabilities on labeled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from fedfew.core.errors import FedfewError
from fedfew.runs.intervals import of_accuracy
from fedfew.runs.reading import RESUME

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
BINS = 10
"""Equally wide bins of confidence for calibration."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A model's probabilities N×C for images whose classes are known."""

    labels: Labels
    probabilities: Floats
    groups: Labels | None = None
    """The patient, or other group, of each image: those of one group are not independent."""

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the most likely class is the true one."""
        right: NDArray[np.bool_] = self.probabilities.argmax(1) == self.labels
        return right

    @staticmethod
    def joined(parts: Sequence["Judged"]) -> "Judged":
        """The results of several folds, joined."""
        labels, probabilities = (
            np.concatenate([getattr(p, key) for p in parts]) for key in ("labels", "probabilities")
        )
        groups = [p.groups for p in parts if p.groups is not None]
        return Judged(labels, probabilities, np.concatenate(groups) if len(groups) == len(parts) else None)


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
    groups = arrays.get("groups")
    if not inside or not np.isfinite(probabilities).all() or not (groups is None or groups.shape == labels.shape):
        raise FedfewError("E309", str(path), "is damaged (labels and probabilities do not fit)", RESUME)
    return Judged(labels.astype(np.int64), probabilities.astype(np.float64), groups)


def evaluate(judged: Judged, classes: Sequence[str]) -> dict[str, Any]:
    """All measures, as in evaluation.json."""
    width = len(classes)
    pairs = judged.labels * width + judged.probabilities.argmax(1)
    confusion = np.bincount(pairs, minlength=width**2).reshape(width, width)  # row: true class, column: predicted
    by_class = per_class(confusion)
    recalls = [row["recall"] for row in by_class if row["recall"] is not None]
    curve = calibration(judged)
    own = of_accuracy(judged.right, judged.groups)
    return {
        "images": len(judged.labels),
        "accuracy": own.mean,
        "interval": [own.low, own.high],
        **({} if judged.groups is None else {"groups": len(np.unique(judged.groups))}),
        "balanced_accuracy": float(np.mean(recalls)) if recalls else None,
        "auroc": auroc(judged),
        "ece": expected_calibration_error(curve, len(judged.labels)),
        "classes": [{"class": name} | row for name, row in zip(classes, by_class, strict=True)],
        "confusion": confusion.tolist(),
        "calibration": curve,
    }


def evenness(accuracies: Sequence[float]) -> dict[str, float]:
    """How even a model's accuracy is among clients: mean of the worst tenth, standard deviation, Gini coefficient."""
    values = np.sort(np.asarray(accuracies, float))
    n, total = len(values), float(values.sum())
    gini = float(((2 * np.arange(1, n + 1) - n - 1) * values).sum() / (n * total)) if total else 0.0
    worst = float(values[: -(-n // 10)].mean())
    return {"worst_clients": worst, "sd_clients": float(values.std(ddof=n > 1)), "gini_clients": gini}


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
