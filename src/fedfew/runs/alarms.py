"""Guard rails: pseudo-labels that collapse, told from the records of the rounds alone.

Two signs. One class takes far more of the labels than its share: the model names everything the same, and learns from
that. Or nearly every image is labelled while the model gets worse: it is sure, and wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 5
"""Rounds looked at together: one non-IID cohort may well hold little else than one class."""
FEWEST = 50
"""Kept labels from which on a share means something."""
TIMES_ITS_SHARE = 3.0
NEARLY_ALL = 0.99
"""Where there are so few classes that three times a share is everything, this much of the labels is too much."""
COVERAGE = 0.9
FALL = 0.02
"""Validation accuracy lost since its best before it counts as falling: twice the standard error of some 600 images."""
STEADY = 3
"""Rounds in a row that coverage must be high and validation low."""


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at: since which round, of which kind, and in words."""

    round: int
    kind: str
    """``"one-class"`` or ``"sure-and-wrong"``."""
    text: str


def alarms(records: Sequence[Mapping[str, Any]], labels: Sequence[float] = ()) -> list[Alarm]:
    """Each kind of collapse at the first round that shows it; nothing for a run that looks sound.

    ``labels``: how many the server has of each class, which tells a class's share; without them all are alike.
    """
    found: dict[str, Alarm] = {}
    for end in range(1, len(records) + 1):
        for alarm in newest(records[:end], labels):
            found.setdefault(alarm.kind, alarm)
    return list(found.values())


def newest(records: Sequence[Mapping[str, Any]], labels: Sequence[float] = ()) -> list[Alarm]:
    """What the last of these rounds shows."""
    return [alarm for alarm in (one_class(records, labels), sure_and_wrong(records)) if alarm]


def one_class(records: Sequence[Mapping[str, Any]], labels: Sequence[float] = ()) -> Alarm | None:
    """Whether one class took more than three times its share of the labels kept in the last rounds."""
    recent = [record["pseudo_classes"] for record in records[-WINDOW:] if record["pseudo_classes"]]
    if len(records) < WINDOW or not recent:
        return None
    counts = [sum(column) for column in zip(*recent, strict=True)]
    kept, classes = sum(counts), len(counts)
    if kept < FEWEST or classes < 2:
        return None
    known = sum(labels) if len(labels) == classes else 0
    usual = [labels[c] / known if known and labels[c] else 1 / classes for c in range(classes)]
    largest = max(range(classes), key=lambda c: counts[c] / usual[c])
    share = counts[largest] / kept
    if share <= min(TIMES_ITS_SHARE * usual[largest], NEARLY_ALL):
        return None
    what = f"{share:.0%} of the pseudo-labels of the last {len(recent)} rounds are class {largest}"
    return Alarm(
        records[-1]["round"],
        "one-class",
        f"{what}, {share / usual[largest]:.1f} times its share of {usual[largest]:.0%}: the labels may be collapsing. "
        "Raise the threshold, lower client.lr, or give the server more epochs.",
    )


def sure_and_wrong(records: Sequence[Mapping[str, Any]]) -> Alarm | None:
    """Whether nearly every image is labelled while validation accuracy has fallen from its best."""
    recent, before = records[-STEADY:], records[:-STEADY]
    judged = [record["validation"] for record in before if record["validation"] is not None]
    if len(recent) < STEADY or not judged:
        return None
    if any(record["coverage"] is None or record["validation"] is None for record in recent):
        return None
    best, now = max(judged), max(record["validation"] for record in recent)
    coverage = min(record["coverage"] for record in recent)
    if coverage <= COVERAGE or now >= best - FALL:
        return None
    return Alarm(
        records[-1]["round"],
        "sure-and-wrong",
        f"{coverage:.0%} of the images are labelled while validation accuracy fell from {best:.1%} to {now:.1%}: "
        "the model is sure and wrong. Raise the threshold, lower client.lr, or give the server more epochs.",
    )
