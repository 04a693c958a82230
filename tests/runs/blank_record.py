"""The record of a round in which nothing happened but what a test says."""

from typing import Any

BLANK: dict[str, Any] = {
    "round": 1, "accuracy": None, "accuracy_clients": None, "loss": None, "validation": None, "cohort": [],
    "weights": {}, "metrics": {}, "coverage": None, "correct": None, "pseudo_classes": [], "bytes_up": 0,
    "bytes_down": 0, "rejected": [], "missing": [], "unused": [], "wire": None, "skipped": False,
    "norm_server": None, "norm_step": None, "updates": [], "seconds": {},
}  # fmt: skip


def blank_record(**values: Any) -> dict[str, Any]:
    """A record with these values."""
    return BLANK | values
