"""fedfew track: rounds reach TensorBoard and MLflow once."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.interface.fedfew_command import fedfew
from tests.runtime.tiny_run import tiny

from fedfew.interface.sinks import times
from fedfew.runs.run import Run
from fedfew.runs.session import reopen, start
from fedfew.runs.summary import scalars
from fedfew.runtime.record import complete


def half_done(path: Path) -> Path:
    rounds = start(tiny(rounds=3), path).advance()
    next(rounds)
    rounds.close()
    return path


def finish(path: Path) -> None:
    for _ in reopen(path, lambda fault: None).advance():
        pass


def test_scalars_and_times() -> None:
    record: Any = complete(
        {"accuracy": 0.5, "loss": None, "seconds": {"server": 2}, "metrics": {"d": 3}, "rejected": [{}, {}]}
    )
    traffic = {"bytes_up": 0.0, "bytes_down": 0.0}
    counted = {"seconds/server": 2.0, "metrics/d": 3.0, "rejected": 2.0, "missing": 0.0}
    assert scalars(record) == {"accuracy": 0.5, **traffic, **counted}


def test_tensorboard_gets_each_round_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    run, out = half_done(tmp_path / "run"), tmp_path / "tb"
    counts = []
    for step in range(3):
        if step == 1:
            finish(run)
        said = fedfew(capsys, "track", run, "--to", "tensorboard", "--out", out, "--json")
        assert said.status == 0, said.err
        counts.append(said.json["rounds"][str(run)])
    assert counts == [1, 2, 0]
    found: dict[int, float] = {}
    for path in (out / "run").iterdir():
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == "accuracy":
                    assert event.step not in found
                    found[event.step] = value.simple_value
    outcome = Run.open(run)
    assert found == pytest.approx({r["round"]: r["accuracy"] for r in outcome.records})
    moments = list(times(outcome))
    assert moments == sorted(moments)


def test_mlflow_gets_each_round_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    run, out = half_done(tmp_path / "run"), tmp_path / "ml"
    counts = []
    for step in range(3):
        if step == 1:
            finish(run)
        said = fedfew(capsys, "track", run, "--to", "mlflow", "--out", out, "--json")
        assert said.status == 0, said.err
        counts.append(said.json["rounds"][str(run)])
    assert counts == [1, 2, 0]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=out.as_uri())
    experiment = client.get_experiment_by_name("mini-mnist")
    assert experiment is not None
    logged = client.search_runs([experiment.experiment_id])
    assert len(logged) == 1
    assert logged[0].data.params["method.name"] == "fedmix"
    history = client.get_metric_history(logged[0].info.run_id, "accuracy")
    told = sorted((metric.step, metric.value) for metric in history)
    assert told == [(r["round"], r["accuracy"]) for r in Run.open(run).records]


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboard.compat.proto.event_pb2"), ("mlflow", "mlflow.entities")]
)
def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    run = half_done(tmp_path / "run")
    monkeypatch.setitem(sys.modules, module, None)
    said = fedfew(capsys, "track", run, "--to", name, "--out", tmp_path / "t")
    assert said.status == 2
    assert "E112" in said.err
    assert ".[track]" in said.err


def test_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "E105" in fedfew(capsys, "track", tmp_path, "--to", "paper").err
    assert "E302" in fedfew(capsys, "track", tmp_path, "--to", "mlflow").err
