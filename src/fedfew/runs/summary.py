"""The summary of a run: its accuracies (never just the best on the test set), its cost, and its privacy."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedfew.runtime.record import RoundRecord, left_out

if TYPE_CHECKING:
    from fedfew.config.tree import Config
    from fedfew.core.evaluation import Evaluation
    from fedfew.transforms import Privacy

HEADLINE = "last"
"""The accuracy that console, pages, comparisons and claims use: of the final model, after the last round."""
MEASURES = (HEADLINE, "mean_last_10", "best_by_validation")
BY_EVALUATION = ("balanced_accuracy", "auroc", "ece", "worst_clients")
"""Further measures by which finished runs can be compared."""
SPELLED = {
    HEADLINE: "accuracy",
    "mean_last_10": "accuracy, mean of the last ten rounds",
    "best_by_validation": "accuracy at the round with the best validation",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "ece": "calibration error (ECE)",
    "worst_clients": "accuracy on the worst tenth of the clients",
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


def reason_to_stop(records: Sequence[RoundRecord], evaluation: "Evaluation", planned: int) -> str:
    """Why a run ends before its last round, as [evaluate] asks; empty if it goes on. A function of its records alone.

    Only after a round that was scored, so that the last round has an accuracy.
    """
    if not records or evaluation.stop == "never" or not evaluation.due(records[-1]["round"], planned):
        return ""
    if evaluation.stop == "settled":
        return "the method has settled" if records[-1]["metrics"].get("settled") else ""
    if evaluation.stop == "validation":
        name, known = "validation accuracy", [(r["round"], r["validation"], 1) for r in records]
    else:
        name, known = "loss on validation images", [(r["round"], r.get("validation_loss"), -1) for r in records]
    best = max(((sign * value, -round) for round, value, sign in known if value is not None), default=None)
    if best is None or records[-1]["round"] + best[1] < evaluation.patience:
        return ""
    return f"no better {name} since round {-best[1]}"


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


def client_rows(record: RoundRecord) -> list[dict[str, Any]]:
    """What a round's record says of each client that was asked."""
    rows: dict[int, dict[str, Any]] = {k: {"client": k} for k in record["cohort"]}
    for update in record["updates"]:
        numbers = {key: value for key, value in update.items() if key != "metrics"}
        rows.setdefault(update["client"], {}).update(numbers | update.get("metrics", {}))
    for client, weight in record["weights"].items():
        rows.setdefault(int(client), {"client": int(client)})["weight"] = weight
    for fault in left_out(record):
        rows.setdefault(fault["client"], {"client": fault["client"]})["fault"] = fault["code"]
    return list(rows.values())


def summarise(
    records: Sequence[RoundRecord], config: "Config", model_sha256: str, evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of summary.json; ``evaluation`` is empty if there are no test images."""
    reason = reason_to_stop(records, config.evaluate, config.rounds) if len(records) < config.rounds else ""
    return {
        "method": config.method_name,
        "aggregator": config.aggregator.name,
        "dataset": config.dataset.name,
        "seed": config.seed,
        **totals(records),
        **{name: evaluation.get(name) for name in BY_EVALUATION if name in (*evaluation, *BY_EVALUATION[:3])},
        "privacy": privacy_of(records, config.privacy),
        "model_sha256": model_sha256,
        **({"stopped": reason, "rounds_saved": config.rounds - len(records)} if reason else {}),
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
    } | ({"names": named} if (named := max((r["metrics"].get("names") or 0.0 for r in records), default=0.0)) else {})


def privacy_of(records: Sequence[RoundRecord], privacy: "Privacy") -> dict[str, Any] | None:
    """The privacy part of the summary; None if privacy is off.

    Every time a client was sampled counts, used or not: its update may have left.
    """
    if not privacy.clip and privacy.unit == "site":
        return None
    asked = Counter(k for record in records for k in record["cohort"])
    most = max(asked.values(), default=0)
    from fedfew.transforms import epsilon  # noqa: PLC0415 - only where privacy is on

    value = epsilon({privacy.counted: most}, privacy.delta) if privacy.noise else None
    return vars(privacy) | {"rounds_of_a_client": most, "epsilon": None if value is None else float(f"{value:.6g}")}
