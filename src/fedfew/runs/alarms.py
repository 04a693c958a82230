"""Guard rails: detect collapsing pseudo-labels from the records of the rounds alone.

Two signs. One class takes far more of the labels than its share: the model predicts it for everything, and learns from
that. Or nearly every image is labelled while the model gets worse: it is sure, and wrong.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from fedfew.runtime.record import RoundRecord

WINDOW = 5
"""Rounds judged together: one non-IID cohort may hold little but one class."""
FEWEST = 50
"""Fewest pseudo-labels for which a share means something."""
TIMES_ITS_SHARE = 3.0
NEARLY_ALL = 0.99
"""With so few classes that three times a share is everything, this share of the labels is too much."""
COVERAGE = 0.9
FALL = 0.02
"""Drop of validation accuracy below its best that counts as falling: twice the standard error of some 600 images."""
STEADY = 3
"""Rounds in a row for which coverage must be high and validation low."""
ADVICE = "Raise the threshold, lower client.lr, or give the server more epochs."


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at: since which round, which kind, and a text."""

    round: int
    kind: str
    """``"one-class"`` or ``"sure-and-wrong"``."""
    text: str


@dataclass(eq=False)
class Guard:
    """Looks at each round once, as it comes, and raises each kind of alarm at the first round that shows it."""

    labels: Sequence[float] = ()
    """How many labels of each class the server has: a class's expected share. Without them all classes are equal."""
    _recent: deque[RoundRecord] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _best: float | None = None
    """The best validation accuracy before the last ``STEADY`` rounds."""
    _raised: set[str] = field(default_factory=set)

    def look(self, record: RoundRecord) -> list[Alarm]:
        """The alarms that this round raises."""
        self._recent.append(record)
        if len(self._recent) > STEADY and (passed := self._recent[-STEADY - 1]["validation"]) is not None:
            self._best = passed if self._best is None else max(self._best, passed)
        signs = [alarm for alarm in (self._one_class(), self._sure_and_wrong()) if alarm]
        fresh = [alarm for alarm in signs if alarm.kind not in self._raised]
        self._raised |= {alarm.kind for alarm in fresh}
        return fresh

    def _one_class(self) -> Alarm | None:
        """Whether one class took more than three times its share of the labels kept in the last rounds."""
        recent = [record["pseudo_classes"] for record in self._recent if record["pseudo_classes"]]
        if len(self._recent) < WINDOW or not recent:
            return None
        counts = [sum(column) for column in zip_longest(*recent, fillvalue=0)]
        kept, classes = sum(counts), len(counts)
        if kept < FEWEST or classes < 2:
            return None
        labels = self.labels if len(self.labels) == classes else [0] * classes
        known = sum(labels)
        usual = [n / known if n else 1 / classes for n in labels]
        largest = max(range(classes), key=lambda c: counts[c] / usual[c])
        share = counts[largest] / kept
        if share <= min(TIMES_ITS_SHARE * usual[largest], NEARLY_ALL):
            return None
        problem = f"{share:.0%} of the pseudo-labels of the last {len(recent)} rounds are class {largest}"
        return Alarm(
            self._recent[-1]["round"],
            "one-class",
            f"{problem}, {share / usual[largest]:.1f} times its share of {usual[largest]:.0%}: the labels may be "
            f"collapsing. {ADVICE}",
        )

    def _sure_and_wrong(self) -> Alarm | None:
        """Whether nearly every image is labelled while validation accuracy has fallen from its best."""
        recent = list(self._recent)[-STEADY:]
        coverages = [r["coverage"] for r in recent if r["coverage"] is not None]
        validations = [r["validation"] for r in recent if r["validation"] is not None]
        if self._best is None or len(coverages) < STEADY or len(validations) < STEADY:
            return None
        now, coverage = max(validations), min(coverages)
        if coverage <= COVERAGE or now >= self._best - FALL:
            return None
        return Alarm(
            recent[-1]["round"],
            "sure-and-wrong",
            f"{coverage:.0%} of the images are labelled while validation accuracy fell from {self._best:.1%} to "
            f"{now:.1%}: the model is sure and wrong. {ADVICE}",
        )


def alarms(records: Iterable[RoundRecord], labels: Sequence[float] = ()) -> list[Alarm]:
    """Each kind of collapse at the first round that shows it; nothing for a run that looks sound."""
    guard = Guard(labels)
    return [alarm for record in records for alarm in guard.look(record)]
