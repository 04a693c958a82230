"""What records tell while a run goes on: collapse, once and not where a run is merely non-IID; and when to end."""

from pathlib import Path
from typing import Any, cast

import pytest
from tests.runs.own_runs import blank_record
from tests.runtime.tiny_run import model_hash, records, tiny, tiny_run

from fedfew.core.errors import FedfewError
from fedfew.core.evaluation import Evaluation
from fedfew.runs.alarms import alarms
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen
from fedfew.runs.summary import reason_to_stop
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


RISES, FALLS = [0.5, 0.6, 0.6, 0.55], [1.0, 0.8, 0.9, 0.7]


@pytest.mark.parametrize(
    ("stop", "patience", "values", "why"),
    [
        ("validation", 2, {"validation": RISES}, "no better validation accuracy since round 2"),
        ("validation", 3, {"validation": RISES}, ""),
        ("validation", 1, {"validation": [None] * 4}, ""),
        ("validation", 1, {"accuracy": RISES}, ""),  # test images never decide
        ("loss", 1, {"validation_loss": FALLS}, ""),
        ("loss", 1, {"validation_loss": FALLS[:3]}, "no better loss on validation images since round 2"),
        ("loss", 1, {"loss": FALLS[:3]}, ""),
        ("settled", 1, {"metrics": [{"settled": 0.0}, {"settled": 1.0}]}, "the method has settled"),
        ("settled", 1, {"metrics": [{"settled": 0.0}, {}]}, ""),
        ("never", 1, {"validation": RISES, "metrics": [{"settled": 1.0}] * 4}, ""),
    ],
)
def test_when_a_run_ends(stop: Any, patience: int, values: dict[str, list[Any]], why: str) -> None:
    rounds = len(next(iter(values.values())))
    made: Any = [blank_record(round=t + 1, **{key: column[t] for key, column in values.items()}) for t in range(rounds)]
    assert reason_to_stop(made, Evaluation(stop=stop, patience=patience), 10) == why
    assert reason_to_stop(made, Evaluation(stop=stop, patience=patience, every=7), 10) == ""  # not scored


def test_a_run_ends_early_and_so_does_an_interrupted_one(tmp_path: Path) -> None:
    how = {"rounds": 30, "evaluate__stop": "validation", "evaluate__patience": 2, "method__name": "server-only"}
    run = tiny_run(tmp_path / "whole", **how)
    assert run.finished and 3 <= run.done < 30
    assert run.summary["rounds_saved"] == 30 - run.done and "validation accuracy" in run.summary["stopped"]
    session = Experiment(tiny(**how)).start(tmp_path / "cut")
    for record in session.advance():
        if record["round"] == run.done:  # the last round is saved, the model is not
            break
    assert not Run.open(tmp_path / "cut").finished
    assert not list(reopen(tmp_path / "cut", print).advance())
    assert records(tmp_path / "cut") == records(run) and model_hash(tmp_path / "cut") == model_hash(run)
    assert not list(reopen(tmp_path / "cut", print).advance()) and Run.open(tmp_path / "cut").finished


def test_without_validation_images_it_is_refused() -> None:
    with pytest.raises(FedfewError, match=r"E113.*evaluate\.stop"):
        tiny(evaluate__stop="loss", dataset__validation=0)
