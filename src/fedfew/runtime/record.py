"""The record of a round: one line of rounds.jsonl, the source of every chart, table and report."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from annotated_types import Ge, MaxLen, Predicate
from typing_extensions import TypedDict

from fedfew.core.errors import NO_UPDATE
from fedfew.core.text import plain

if TYPE_CHECKING:  # records are read without torch
    from torch import Tensor

    from fedfew.core.types import ClientUpdate, Missing, Outcome, Scores, ServerState
    from fedfew.runtime.exchange import Answers

Natural = Annotated[int, Ge(0)]
ClientName = Annotated[str, MaxLen(12), Predicate(str.isdecimal)]
WARMUP = "warmup"
"""The phase in a round's seconds that belongs to no round: training before the first."""


class Fault(TypedDict):
    """A client whose update does not count, and why."""

    client: Natural
    code: str
    reason: str


class Direction(TypedDict):
    """How far a client moved, and how much its step agrees with the server's, where that is known."""

    client: Natural
    norm: NotRequired[float | None]
    cosine: NotRequired[float | None]
    scaled: NotRequired[float | None]
    """The factor by which its change was shortened to what the cohort's lengths allow (gate.clip), if it was."""
    counted: NotRequired[Natural]
    """How many images were counted, if it claims far more than the others (gate.max_times)."""
    metrics: NotRequired[dict[str, float | None]]
    """What it reports of its training."""


class RoundRecord(TypedDict):
    """A round; unknown values are None."""

    round: Natural
    accuracy: float | None
    """Of the model after the server's turn."""
    accuracy_clients: float | None
    """Of the clients' model before it."""
    loss: float | None
    validation: float | None
    validation_loss: NotRequired[float | None]
    cohort: list[Natural]
    weights: dict[ClientName, float | None]
    metrics: dict[str, float | None]
    coverage: float | None
    """Share of the clients' images with a confident pseudo-label."""
    correct: float | None
    """Share of these labels that are right; known in a simulation only."""
    pseudo_classes: list[Natural]
    bytes_up: float
    bytes_down: float
    rejected: list[Fault]
    """Updates that the gate refused."""
    missing: list[Fault]
    """Clients that dropped out, failed or did not answer in time."""
    unused: list[Fault]
    """Answers that came late or twice."""
    wire: dict[str, float] | None
    """Bytes really sent, on a network."""
    skipped: bool
    failure: NotRequired[str]
    """Why it was skipped although clients answered."""
    norm_server: float | None
    norm_step: float | None
    """How far the model moved."""
    updates: list[Direction]
    seconds: dict[str, float]


def pace(record: RoundRecord) -> float:
    """Seconds of a round without a warm-up before it: an estimate for the next round."""
    return sum(seconds for phase, seconds in record["seconds"].items() if phase != WARMUP)


def left_out(record: Mapping[str, Any]) -> list[Fault]:
    """Every selected client whose update does not count."""
    return sorted([*record["rejected"], *record["missing"]], key=lambda fault: fault["client"])


def describe(
    scores: "Scores", state: "ServerState", trained: "ServerState", answers: "Answers", outcome: "Outcome",
    seconds: dict[str, float],
) -> RoundRecord:  # fmt: skip
    """Everything a report or a chart shows about a round; ``trained`` is the state that was sent to the clients."""
    coverage, correct, classes = pseudo_labels(answers)
    server_step = trained.sigma - trained.omega
    if outcome.clients is not None and not server_step.any():
        server_step = state.omega - outcome.clients  # the server trains last
    server_norm = float(server_step.norm())
    single = [] if answers.summed else answers.updates
    directions = (_direction(answers, u, server_step, server_norm) for u in single)
    record: RoundRecord = {
        "round": state.round,
        "accuracy": _short(scores.accuracy),
        "accuracy_clients": _short(scores.clients),
        "loss": _short(scores.loss),
        "validation": _short(scores.validation),
        "cohort": answers.cohort,
        "weights": {} if answers.summed else {str(k): _short(w) for k, w in outcome.weights.items()},
        "metrics": {name: _short(value) for name, value in outcome.metrics.items()},
        "coverage": coverage,
        "correct": correct,
        "pseudo_classes": classes,
        "bytes_up": answers.bytes_up,
        "bytes_down": answers.bytes_down,
        "rejected": [_fault(m) for m in answers.missing if m.code not in NO_UPDATE],
        "missing": [_fault(m) for m in answers.missing if m.code in NO_UPDATE],
        "unused": [_fault(m) for m in answers.unused],
        "wire": dict(answers.wire) or None,
        "skipped": bool(outcome.failure) or (bool(answers.cohort) and not answers.updates),
        "norm_server": _short(server_norm),
        "norm_step": _short(float((state.omega - trained.omega).norm())),
        "updates": list(directions),
        "seconds": seconds,
    }
    if scores.validation_loss is not None:
        record["validation_loss"] = _short(scores.validation_loss)
    if outcome.failure:
        record["failure"] = plain(outcome.failure)
    return record


def pseudo_labels(answers: "Answers") -> tuple[float | None, float | None, list[int]]:
    """Share of images with a confident label, share of these that are right (simulation), and their number by class."""
    voted = [u for u in answers.updates if "kept" in u.metrics]
    images, kept = sum(u.examples for u in voted), sum(u.metrics["kept"] for u in voted)
    if not images:
        return None, None, []
    known = all("right" in u.metrics for u in voted)
    correct = _short(sum(u.metrics["right"] for u in voted) / kept) if known and kept else None
    width = answers.classes if all("class/0" in u.metrics for u in voted) else 0
    classes = [int(sum(u.metrics.get(f"class/{c}", 0.0) for u in voted)) for c in range(width)]
    return _short(kept / images), correct, classes


def _fault(missing: "Missing") -> Fault:
    return {"client": missing.client, "code": missing.code, "reason": missing.reason}


def _direction(answers: "Answers", update: "ClientUpdate", step: "Tensor", length: float) -> Direction:
    client, psi = update.client, update.reply.get("psi")
    sent = answers.payloads[client].get("omega")
    direction: Direction = {"client": client}
    if told := {name: _short(value) for name, value in update.metrics.items() if not name.startswith("class/")}:
        direction["metrics"] = told
    if client in answers.scaled:
        direction["scaled"] = _short(answers.scaled[client])
    if client in answers.counted:
        direction["counted"] = answers.counted[client]
    if psi is None or sent is None:
        return direction
    change = psi - sent
    norm = float(change.norm())
    direction["norm"] = _short(norm)
    direction["cosine"] = _short(float(change @ step) / (norm * length) if norm and length else 0.0)
    return direction


def _short(value: float | None) -> float | None:
    """Six digits are enough for a person and a chart; NaN and infinity are null in JSON."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
