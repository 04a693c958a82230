"""What the sites' images are worth: a run compared with server-only training on the same labels, in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.data import noun_of
from fedfew.runs.intervals import Interval, of_accuracy, of_pair
from fedfew.runs.run import BOUNDS, REFERENCES, Run
from fedfew.runs.statistics import Judged

if TYPE_CHECKING:
    from fedfew.studies.bounds import Bound

BASELINE = BOUNDS[0]
FEWEST = 10
"""Fewest labels to suggest."""
EVEN = 0.5
"""A loss that chance explains no more often than this is called one."""


@dataclass(frozen=True)
class Gain:
    """Accuracy with the sites' images and without, and the paired difference, each with its 95 % interval."""

    own: Interval
    base: Interval
    difference: Interval
    counts: str = ""
    """How many test images were gained and lost, as text."""

    @staticmethod
    def on_images(own: Judged, base: Judged) -> "Gain":
        """With intervals over the test images, or over their groups."""
        gained, lost = int((own.right & ~base.right).sum()), int((base.right & ~own.right).sum())
        difference = of_pair(own.right, base.right, own.groups)
        groups = "" if own.groups is None else f" of {len(np.unique(own.groups)):,} groups"
        p = "" if difference.p is None else f", p = {difference.p:.2g}"
        counts = f"{len(own.labels):,} test images{groups} ({gained:,} gained, {lost:,} lost{p})"
        return Gain(of_accuracy(own.right, own.groups), of_accuracy(base.right, base.groups), difference, counts)

    @staticmethod
    def over_seeds(accuracies: Sequence[tuple[float, float]]) -> "Gain":
        """With intervals over the seeds, from the accuracies of each: with the sites' images, and without."""
        own, base = zip(*accuracies, strict=True)
        return Gain(Interval.of(own), Interval.of(base), Interval.of([a - b for a, b in accuracies]))

    def as_json(self) -> dict[str, Any]:
        intervals = {"accuracy": self.own, "server_only": self.base, "difference": self.difference}
        numbers = {name: {"mean": i.mean, "low": i.low, "high": i.high} for name, i in intervals.items()}
        return numbers | {"p": self.difference.p, "counts": self.counts}


@dataclass(frozen=True)
class Verdict:
    """A gain on so many test images, and what to do about it."""

    gain: Gain
    images: int
    labels: int
    folds: int = 0
    """Number of folds of the labels, each tested by models that had not seen it; 0: tested on test images."""
    noun: str = "images"
    """What the samples are called."""
    names: bool = False
    """Whether the run also used what its backbone knows of the classes' names."""

    @property
    def helps(self) -> bool | None:
        """Whether the sites' images help; None if that cannot be said."""
        difference = self.gain.difference
        return difference.mean > 0 if difference.significant else None

    @property
    def subject(self) -> str:
        return f"The sites' {self.noun}" + (" and the classes' names" if self.names else "")

    @property
    def sentence(self) -> str:
        """A sentence a person can act on."""
        gap = self.gain.difference
        span = "" if gap.low is None or gap.high is None else f" [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
        numbers = f"{100 * self.gain.own.mean:.1f} % against {100 * self.gain.base.mean:.1f} % with your labels alone"
        measured = f"{100 * gap.mean:+.1f} points{span}: {numbers}, on {self.tested_on}."
        advice = f"label {max(self.labels, FEWEST)} more {self.noun} (`fedfew label-next`)."
        if self.helps:
            return f"{self.subject} bring {measured}"
        if self.helps is False:
            return f"{self.subject} do harm, {measured} Use the server-only model, or {advice}"
        if gap.mean < 0 and (gap.p is None or gap.p < EVEN):
            return f"{self.subject} seem to do harm, {measured} Use the server-only model, or {advice}"
        chance = "bring nothing measurable" if gap.mean <= 0 else "bring no certain gain"
        return f"{self.subject} {chance}, {measured} {advice.capitalize()}"

    @property
    def tested_on(self) -> str:
        if self.folds:
            labels = self.gain.counts.replace("test images", "labels")
            return f"{labels}, by cross-validation with {self.folds} folds, since there are no test {self.noun}"
        return self.gain.counts.replace("images", self.noun)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        about = {"sentence": self.sentence, "helps": self.helps, "images": self.images, "folds": self.folds}
        return about | self.gain.as_json()


def baseline_of(config: Config, method: str = BASELINE) -> Config:
    """Server-only training, or another baseline, with everything else equal.

    E113 if the two would be scored at different points."""
    if getattr(config.method, "order", "") == "before":
        why = "scores each round before the server's turn, so it cannot be compared with server-only training"
        raise FedfewError("E113", "method.order", why, "Set method.order=after")
    return load(config.document, {"method.name": method, "aggregator.name": "auto", "vote.prior": "server"})


def verdict(run: Run, bounds: "Sequence[Bound]") -> Verdict | None:
    """A finished run compared with its server-only pair (same seeds and recipe, finished too); None if there is none.

    Bounds get no verdict: what true labels bring is not what the sites' images bring.
    """
    lower = next((b for b in bounds if b.name == BASELINE), None)
    if run.method in REFERENCES or lower is None or not lower.runs or lower.mismatch or lower.unfinished:
        return None
    labels = sum(run.classes.get("server", ())) or run.labels
    return weigh([run], lower.runs[:1], labels)


def weigh(own: Sequence[Run], base: Sequence[Run], labels: int, folds: int = 0) -> Verdict | None:
    """Runs compared with those of server-only training, one for each fold of a cross-validation.

    None if probabilities are missing, or not of the same images.
    """
    pairs = [(a.judged, b.judged) for a, b in zip(own, base, strict=True)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known or len(known) < len(pairs):
        return None
    mine, its = Judged.joined([a for a, _ in known]), Judged.joined([b for _, b in known])
    if not np.array_equal(mine.labels, its.labels):
        return None
    names = bool(own[0].totals.get("names"))
    return Verdict(Gain.on_images(mine, its), len(mine.labels), labels, folds, noun_of(own[0].dataset), names)
