"""Why FedMix stays near its server, from runs of it: the damping by γ, FedFreq's weights, and τ."""

from collections.abc import Callable
from dataclasses import replace
from statistics import mean

from fedfew.runs.intervals import Interval
from fedfew.runs.run import Run
from fedfew.runtime.record import RoundRecord
from paper.arms import DAMPED
from paper.measures import Verdict, difference, positive, weigh
from paper.results import ArmResult, Results

NONE, PUBLISHED, MUCH = DAMPED
SPREAD = 0.1
"""FedFreq distinguishes clients if weights differ from an equal share by more than this on average."""
ENOUGH = 0.1
"""Pseudo-labels matter if at least this share of the images gets one, on average over the rounds."""


def damping(record: RoundRecord) -> float | None:
    """How far the model moved, as a share of the step of the server's training alone."""
    moved, server = record["norm_step"], record["norm_server"]
    return moved / server if moved is not None and server else None


def unequal(record: RoundRecord) -> float | None:
    """The mean distance of a round's client weights from an equal share, as a share of it."""
    weights = [w for w in record["weights"].values() if w is not None]
    return mean(abs(len(weights) * w - 1) for w in weights) if len(weights) > 1 else None


def coverage(record: RoundRecord) -> float | None:
    """The share of images with a label above τ."""
    return record["coverage"]


def over_rounds(arm: ArmResult, of: Callable[[RoundRecord], float | None]) -> Interval | None:
    """The mean of a measure over a run's rounds, then over the seeds."""

    def measure(run: Run) -> float | None:
        known = [value for record in run.records if (value := of(record)) is not None]
        return mean(known) if known else None

    values = list(arm.by_seeds(measure).values())
    return replace(Interval.of(values), partial=not arm.finished) if values else None


def ablation(arms: Results) -> list[Verdict]:
    """The reasons, each stated as what would have to hold for the method to work as described."""
    published = arms["", PUBLISHED]
    gain = difference(published, arms["", NONE])
    conditions = [
        weigh("γ = 0.2 does better than no share of the old model (α : β kept)", "Eq. 9", gain, positive, signed=True),
        _share(
            "the model takes the step that the labels alone would give (length of a round's step by that of the "
            "server's)", "Eq. 9", over_rounds(published, damping), 1.0,
        ),
        _share(
            "FedFreq tells clients apart (mean distance of weights from an equal share, by an equal share)",
            "FedFreq Aggregation Algorithm", over_rounds(published, unequal), SPREAD,
        ),
        _share(
            "clients learn from labels above τ = 0.8 (share of their images, mean over the rounds)",
            "Eq. 8", over_rounds(published, coverage), ENOUGH,
        ),
    ]  # fmt: skip
    return [replace(v, kind="would have to hold") for v in conditions]


def _share(claim: str, source: str, m: Interval | None, least: float) -> Verdict:
    """Whether a share is as large as it must be."""
    return weigh(claim, source, m, lambda m: ("yes" if m.mean >= least else "no", f"At least {least:.0%} would count"))
