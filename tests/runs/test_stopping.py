"""Early stopping: a rule that reads the records alone, so that an interrupted run ends after the same round."""

from pathlib import Path
from typing import Any

import pytest
from tests.runs.own_runs import blank_record
from tests.runtime.tiny_run import model_hash, records, tiny, tiny_run

from fedfew.core.errors import FedfewError
from fedfew.core.evaluation import Evaluation
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen
from fedfew.runs.summary import reason_to_stop

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
