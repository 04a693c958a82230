"""The summary of a run: its accuracies (never just the best on the test set), its cost, and its privacy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedfew.runtime.record import RoundRecord

if TYPE_CHECKING:
    from fedfew.config.tree import Config
    from fedfew.transforms import Privacy

HEADLINE = "last"
"""The accuracy that console, pages, comparisons and claims use: of the final model, after the last round."""
MEASURES = (HEADLINE, "mean_last_10", "best_by_validation")
BY_EVALUATION = ("balanced_accuracy", "auroc", "ece")
"""Further measures by which finished runs can be compared."""
SPELLED = {
    HEADLINE: "accuracy",
    "mean_last_10": "accuracy, mean of the last ten rounds",
    "best_by_validation": "accuracy at the round with the best validation",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "ece": "calibration error (ECE)",
}
"""Names of the measures for people."""
PLAIN = (
    "accuracy", "loss", "validation", "coverage", "correct", "bytes_up", "bytes_down", "norm_server", "norm_step",
)  # fmt: skip


def accuracies(records: Sequence[RoundRecord]) -> dict[str, float | None]:
    """Accuracy of the last scored round, the mean of those among the last ten, and that with the best validation."""
    if not records:
        return dict.fromkeys(MEASURES)
    tail = [accuracy for r in records[-10:] if (accuracy := r["accuracy"]) is not None]
    best = best_round(records)
    return {
        HEADLINE: newest(records, "accuracy"),
        "mean_last_10": sum(tail) / len(tail) if tail else None,
        "best_by_validation": best["accuracy"] if best else None,
    }


def best_round(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """The round with the best validation accuracy, the first of several."""
    judged = [r for r in records if r["validation"] is not None]
    return max(judged, key=lambda r: r["validation"] or 0.0) if judged else None


def scored(records: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """The rounds after which the model was scored (evaluate.every); all of them if none was."""
    return [r for r in records if r["accuracy"] is not None] or records


def newest(records: Sequence[RoundRecord], key: Literal["accuracy", "coverage", "correct"]) -> float | None:
    """The last known value."""
    return next((r[key] for r in reversed(records) if r[key] is not None), None)


def scalars(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name; unknown ones are left out."""
    numbers: dict[str, Any] = {name: record.get(name) for name in PLAIN}
    numbers |= {f"seconds/{phase}": value for phase, value in record["seconds"].items()}
    numbers |= {f"metrics/{name}": value for name, value in record["metrics"].items()}
    numbers |= {name: len(record[name]) for name in ("rejected", "missing")}
    return {name: float(value) for name, value in numbers.items() if value is not None}


def summarise(
    records: Sequence[RoundRecord], config: "Config", model_sha256: str, evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of summary.json; ``evaluation`` is empty if there are no test images."""
    return {
        "method": config.method_name,
        "aggregator": config.aggregator.name,
        "dataset": config.dataset.name,
        "seed": config.seed,
        **totals(records),
        **{name: evaluation.get(name) for name in BY_EVALUATION},
        "privacy": privacy_of(records, config.privacy),
        "model_sha256": model_sha256,
    }


def totals(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """What the rounds so far add up to."""
    return {
        "rounds": len(records),
        "accuracy": accuracies(records),
        "coverage": newest(records, "coverage"),
        "correct": newest(records, "correct"),
        "bytes_up": sum(r["bytes_up"] for r in records),
        "bytes_down": sum(r["bytes_down"] for r in records),
        "rejected": sum(len(r["rejected"]) for r in records),
        "missing": sum(len(r["missing"]) for r in records),
        "skipped": sum(r["skipped"] for r in records),
        "seconds": round(sum(sum(r["seconds"].values()) for r in records), 2),
    }


def privacy_of(records: Sequence[RoundRecord], privacy: "Privacy") -> dict[str, Any] | None:
    """The privacy part of the summary; None if privacy is off.

    Every time a client was sampled counts, used or not: its update may have left.
    """
    if not privacy.clip and privacy.unit == "site":
        return None
    asked = Counter(k for record in records for k in record["cohort"])
    most = max(asked.values(), default=0)
    from fedfew.transforms.epsilon import epsilon  # noqa: PLC0415 - only where privacy is on

    value = epsilon({privacy.counted: most}, privacy.delta) if privacy.noise else None
    return vars(privacy) | {"rounds_of_a_client": most, "epsilon": None if value is None else float(f"{value:.6g}")}
