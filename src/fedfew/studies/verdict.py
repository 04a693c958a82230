"""What the sites' images are worth: a run compared with server-only training on the same labels, in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfew.config.schema import Config, load
from fedfew.core.errors import FedfewError
from fedfew.runs.measures import Judged, accuracy_interval, paired_difference
from fedfew.runs.run import BOUNDS, Run
from fedfew.runs.statistics import Interval
from fedfew.studies.bounds import BASELINE, Bound, bounds_of

FEWEST = 10
"""Fewest labels to suggest."""


@dataclass(frozen=True)
class Verdict:
    """Accuracies on the same images, and the paired difference, each with a 95 % bootstrap interval over the images."""

    own: Interval
    base: Interval
    difference: Interval
    images: int
    labels: int
    folds: int = 0
    """Number of folds of the labels, each tested by models that had not seen it; 0: tested on test images."""

    @property
    def helps(self) -> bool | None:
        """Whether the sites' images help; None if that cannot be said."""
        return self.difference.mean > 0 if self.difference.significant else None

    @property
    def sentence(self) -> str:
        """A sentence a person can act on."""
        figures = f"{_percent(self.own.mean)} against {_percent(self.base.mean)} with your labels alone"
        if self.helps:
            return f"The sites' images bring {_points(self.difference)}: {figures}, on {self.tested_on}."
        if self.helps is False:
            return (
                f"The sites' images do harm, {_points(self.difference)}: {figures}, on {self.tested_on}. "
                f"Use the server-only model, or {self.advice}."
            )
        return (
            f"The sites' images bring nothing measurable, {_points(self.difference)}: {figures}, on {self.tested_on}. "
            f"{self.advice.capitalize()}."
        )

    @property
    def advice(self) -> str:
        """If the sites do not help, labels do: as many again as there are."""
        return f"label {max(self.labels, FEWEST)} more images (`fedfew label-next`)"

    @property
    def tested_on(self) -> str:
        if self.folds:
            return f"{self.images} labels, by cross-validation with {self.folds} folds, since there are no test images"
        return f"{self.images:,} test images"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        spans = {"accuracy": self.own, "server_only": self.base, "difference": self.difference}
        values = {name: {"mean": own.mean, "low": own.low, "high": own.high} for name, own in spans.items()}
        return {"sentence": self.sentence, "helps": self.helps, "images": self.images, "folds": self.folds} | values


def baseline_of(config: Config) -> Config:
    """Server-only training with everything else equal; E113 if the two would be scored at different points."""
    if config.document["method"].get("order") == "before":
        what = "scores each round before the server's turn, so it cannot be compared with server-only training"
        raise FedfewError("E113", "method.order", what, "Set method.order=after")
    return load(config.document, {"method.name": BASELINE, "aggregator.name": "auto", "vote.prior": "server"})


def _points(gap: Interval) -> str:
    """+18.2 points [+14.0, +22.1]"""
    low, high = gap.low or 0.0, gap.high or 0.0
    return f"{100 * gap.mean:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def weigh(own: Judged, base: Judged, labels: int, folds: int = 0) -> Verdict | None:
    """The verdict from two models' probabilities; None if they are not of the same images."""
    if not np.array_equal(own.labels, base.labels):
        return None
    return Verdict(
        accuracy_interval(own), accuracy_interval(base), paired_difference(own, base), len(own.labels), labels, folds
    )


def verdict(run: Run, bounds: Sequence[Bound]) -> Verdict | None:
    """A finished run compared with its server-only pair (same seeds and recipe, finished too); None if there is none.

    Bounds get no verdict: what true labels bring is not what the sites' images bring.
    """
    lower = next((b for b in bounds if b.name == BASELINE), None)
    if run.method in BOUNDS or lower is None or not lower.runs or lower.apart or lower.unfinished:
        return None
    own, base = run.judged, lower.runs[0].judged
    labels = sum(run.classes.get("server", ())) or int(run.document.get("labels", 0))
    return weigh(own, base, labels) if own is not None and base is not None else None


def over_folds(own: Sequence[Run], base: Sequence[Run], labels: int) -> Verdict | None:
    """The verdict of cross-validation, over the images of all folds."""
    judged = [[run.judged for run in runs] for runs in (own, base)]
    known = [[j for j in one if j is not None] for one in judged]
    if not known[0] or len(known[0]) != len(known[1]):
        return None
    return weigh(Judged.joined(known[0]), Judged.joined(known[1]), labels, len(own))


def verdict_beside(run: Run, others: Sequence[Run]) -> Verdict | None:
    """The same, with the pair searched among other runs."""
    return verdict(run, bounds_of(run, others))
