"""Collapse is told from records, once, at the round that shows it, and not from a run that is merely non-IID."""

from typing import Any, cast

import pytest
from tests.runs.own_runs import blank_record

from fedfew.runs.alarms import alarms
from fedfew.runtime.record import RoundRecord


def record(t: int, classes: list[int], coverage: float | None = 0.5, validation: float | None = 0.6) -> RoundRecord:
    made: Any = blank_record(round=t, pseudo_classes=classes, coverage=coverage, validation=validation)
    return cast(RoundRecord, made)


def even(t: int, **other: Any) -> RoundRecord:
    return record(t, [10] * 10, **other)


def test_a_sound_run_has_no_alarms() -> None:
    assert alarms([]) == []
    assert alarms([even(t) for t in range(1, 20)]) == []


def test_one_class_that_takes_over_is_told_at_the_first_round_that_shows_it() -> None:
    healthy = [even(t) for t in range(1, 6)]
    collapsed = [record(t, [100, *[0] * 9]) for t in range(6, 12)]
    found = alarms(healthy + collapsed)
    assert [alarm.kind for alarm in found] == ["one-class"]
    # the five rounds up to t hold t − 5 collapsed ones: a share of (100(t − 5) + 10(10 − t)) / 500 > 0.3 from t = 7 on
    assert found[0].round == 7
    assert "class 0" in found[0].text


def test_one_non_iid_cohort_is_not_a_collapse() -> None:
    rounds = [even(t) for t in range(1, 5)] + [record(5, [0, 60, *[0] * 8])] + [even(t) for t in range(6, 12)]
    assert alarms(rounds) == []
    turns = [record(t, [60 if c == t % 10 else 0 for c in range(10)]) for t in range(1, 21)]
    assert alarms(turns) == [], "every round another class"


def test_a_handful_of_labels_says_nothing() -> None:
    assert alarms([record(t, [9, *[0] * 9]) for t in range(1, 6)]) == []


def test_a_class_that_is_common_among_the_labels_may_be_common_among_the_images() -> None:
    rounds = [record(t, [67, 6, 6, 6, 5, 5, 5]) for t in range(1, 8)]
    assert alarms(rounds), "67 of 100, where a seventh is an even share"
    assert alarms(rounds, [134, 12, 12, 12, 10, 10, 10]) == []
    (alarm,) = alarms([record(t, [40, 40, 5, 5, 5, 5, 0]) for t in range(1, 8)], [134, 12, 12, 12, 10, 10, 10])
    assert "class 1" in alarm.text
    assert "6.7 times its share of 6%" in alarm.text


@pytest.mark.parametrize("share", [[90, 10], [100, 0]])
def test_with_two_classes_only_nearly_everything_is_too_much(share: list[int]) -> None:
    found = alarms([record(t, share) for t in range(1, 8)])
    assert bool(found) == (share == [100, 0])


def test_sure_and_wrong() -> None:
    rising = [even(t, coverage=0.95, validation=0.5 + 0.01 * t) for t in range(1, 8)]
    assert alarms(rising) == [], "high coverage alone is what one hopes for"
    falling = rising + [even(t, coverage=0.95, validation=0.5) for t in range(8, 12)]
    found = alarms(falling)
    assert [(alarm.kind, alarm.round) for alarm in found] == [("sure-and-wrong", 10)]
    assert "57.0%" in found[0].text
    unsure = rising + [even(t, coverage=0.85, validation=0.5) for t in range(8, 12)]
    assert alarms(unsure) == []


def test_methods_without_labels_and_runs_without_validation_are_left_alone() -> None:
    assert alarms([record(t, [], None, None) for t in range(1, 12)]) == []
    assert alarms([even(t, coverage=0.99, validation=None) for t in range(1, 12)]) == []


def test_labels_of_other_widths_do_not_break_the_alarms() -> None:
    assert alarms([record(t, [30] * (10 if t % 2 else 3)) for t in range(1, 9)]) == []


def test_both_kinds_are_told_in_the_order_of_their_rounds() -> None:
    rounds = [even(t, coverage=0.95, validation=0.7) for t in range(1, 6)]
    rounds += [record(t, [500, *[0] * 9], 0.95, 0.3) for t in range(6, 12)]
    found = alarms(rounds)
    assert [alarm.kind for alarm in found] == ["one-class", "sure-and-wrong"]
    assert found[0].round < found[1].round
