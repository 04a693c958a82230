"""The record of a round: one line of rounds.jsonl."""

import math
from typing import Any

from torch import Tensor

from fedfew.core.types import Scores, ServerState
from fedfew.runtime.exchange import Answers

RoundRecord = dict[str, Any]


def describe(scores: Scores, state: ServerState, trained: ServerState, answers: Answers) -> RoundRecord:
    """Everything a report or a chart says about a round; ``trained`` is the state the clients were asked from."""
    coverage, correct, classes = pseudo_labels(answers)
    server_step = trained.sigma - trained.omega
    server_norm = float(server_step.norm())
    directions = (_direction(answers, u.client, u.reply.get("psi"), server_step, server_norm) for u in answers.updates)
    return {
        "round": state.round,
        "accuracy": _short(scores.accuracy),
        "loss": _short(scores.loss),
        "validation": _short(scores.validation),
        "cohort": answers.cohort,
        "weights": {str(k): _short(w) for k, w in state.weights.items()},
        "metrics": {name: _short(value) for name, value in state.metrics.items()},
        "coverage": coverage,
        "correct": correct,
        "pseudo_classes": classes,
        "bytes_up": answers.bytes_up,
        "bytes_down": answers.bytes_down,
        "rejected": [{"client": m.client, "code": m.code, "reason": m.reason} for m in answers.missing],
        "unused": [{"client": m.client, "code": m.code, "reason": m.reason} for m in answers.unused],
        "wire": answers.wire or None,
        "skipped": bool(answers.cohort) and not answers.updates,
        "norm_server": _short(server_norm),
        "norm_clients": _short(float((state.omega - trained.omega).norm())),
        "updates": list(directions),
    }


def pseudo_labels(answers: Answers) -> tuple[float | None, float | None, list[int]]:
    """Share of images with a confident label, share of these that are right (simulation), and their number by class."""
    voted = [u for u in answers.updates if "kept" in u.metrics]
    images, kept = sum(u.examples for u in voted), sum(u.metrics["kept"] for u in voted)
    if not images:
        return None, None, []
    known = all("right" in u.metrics for u in voted)
    correct = _short(sum(u.metrics["right"] for u in voted) / kept) if known and kept else None
    width = sum(name.startswith("class/") for name in voted[0].metrics)
    classes = [int(sum(u.metrics.get(f"class/{c}", 0.0) for u in voted)) for c in range(width)]
    return _short(kept / images), correct, classes


def _direction(answers: Answers, client: int, psi: Tensor | None, step: Tensor, length: float) -> dict[str, Any]:
    """How far a client moved, and how much its way agrees with the server's."""
    sent = answers.payloads[client].get("omega")
    if psi is None or sent is None:
        return {"client": client}
    change = psi - sent
    norm = float(change.norm())
    cosine = float(change @ step) / (norm * length) if norm and length else 0.0
    return {"client": client, "norm": _short(norm), "cosine": _short(cosine)}


def _short(value: float | None) -> float | None:
    """Six digits are enough for a person and a chart; what is not a number is null in JSON."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
