"""The summary of a run: its accuracies, never the best on the test set alone, and what it cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedfew.runs.epsilon import privacy_of

if TYPE_CHECKING:
    from fedfew.config.schema import Config


def accuracies(records: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The last round's, the mean of the last ten, and the one at the round where validation was best."""
    if not records:
        return {"last": None, "mean_last_10": None, "best_by_validation": None}
    tail = [r["accuracy"] for r in records[-10:] if r["accuracy"] is not None]
    judged = [r for r in records if r["validation"] is not None]
    best = max(judged, key=lambda r: r["validation"]) if judged else None
    return {
        "last": records[-1]["accuracy"],
        "mean_last_10": sum(tail) / len(tail) if tail else None,
        "best_by_validation": best["accuracy"] if best else None,
    }


def traffic(records: Sequence[dict[str, Any]], which: str) -> float:
    """``bytes_up`` or ``bytes_down`` of a round, the mean over the rounds."""
    return float(sum(r[which] for r in records)) / max(len(records), 1)


def summarise(records: Sequence[dict[str, Any]], config: "Config", model_sha256: str) -> dict[str, Any]:
    """What summary.json holds."""
    voted = [r for r in records if r["coverage"] is not None]
    return {
        "method": config["method.name"],
        "aggregator": config["aggregator.name"],
        "dataset": config["dataset.name"],
        "seed": config["seed"],
        "rounds": len(records),
        "accuracy": accuracies(records),
        "coverage": voted[-1]["coverage"] if voted else None,
        "correct": voted[-1]["correct"] if voted else None,
        "bytes_up": sum(r["bytes_up"] for r in records),
        "bytes_down": sum(r["bytes_down"] for r in records),
        "rejected": sum(len(r["rejected"]) for r in records),
        "skipped": sum(r["skipped"] for r in records),
        "seconds": round(sum(sum(r["seconds"].values()) for r in records), 2),
        "privacy": privacy_of(records, config["privacy"]),
        "model_sha256": model_sha256,
    }
