"""fedfew track: rounds reach TensorBoard, MLflow and W&B once."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interface.fedfew_command import Capture, fedfew
from tests.runs.own_runs import blank_record
from tests.runtime.tiny_run import tiny

from fedfew.interface.sinks import times
from fedfew.runs.run import Run
from fedfew.runs.session import reopen, start
from fedfew.runs.summary import scalars


def half_done(path: Path) -> Path:
    rounds = start(tiny(rounds=3), path).advance()
    next(rounds)
    rounds.close()
    return path


def finish(path: Path) -> None:
    for _ in reopen(path, lambda fault: None).advance():
        pass


def test_scalars_and_times() -> None:
    record: Any = blank_record(accuracy=0.5, seconds={"server": 2}, metrics={"d": 3}, rejected=[{}, {}])
    traffic = {"bytes_up": 0.0, "bytes_down": 0.0}
    counted = {"seconds/server": 2.0, "metrics/d": 3.0, "rejected": 2.0, "missing": 0.0}
    assert scalars(record) == {"accuracy": 0.5, **traffic, **counted}


Curve = list[tuple[int, float]]


def in_tensorboard(out: Path) -> Curve:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    events = [event for path in (out / "run").iterdir() for event in LegacyEventFileLoader(str(path)).Load()]
    return [(e.step, value.simple_value) for e in events for value in e.summary.value if value.tag == "accuracy"]


def in_mlflow(out: Path) -> Curve:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=out.as_uri())
    experiment = client.get_experiment_by_name("mini-mnist")
    assert experiment is not None
    [logged] = client.search_runs([experiment.experiment_id])
    assert logged.data.params["method.name"] == "fedmix"
    return [(metric.step, metric.value) for metric in client.get_metric_history(logged.info.run_id, "accuracy")]


def in_wandb(out: Path) -> Curve:
    from wandb.proto import wandb_internal_pb2 as messages
    from wandb.sdk.internal.datastore import DataStore

    [file] = out.glob("wandb/offline-run-*/*.wandb")
    store, found = DataStore(), []
    store.open_for_scan(str(file))
    while (content := store.scan_data()) is not None:
        record: Any = messages.Record()  # type: ignore[attr-defined]
        record.ParseFromString(content)
        if record.HasField("history"):
            values = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found.append((int(values["_step"]), float(values["accuracy"])))
    return found


@pytest.mark.parametrize(
    ("name", "stored"), [("tensorboard", in_tensorboard), ("mlflow", in_mlflow), ("wandb", in_wandb)]
)
def test_each_round_is_sent_once(name: str, stored: Callable[[Path], Curve], capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip(name)
    run, out = half_done(tmp_path / "run"), tmp_path / "out"
    counts = []
    for step in range(3):
        if step == 1:
            finish(run)
        said = fedfew(capsys, "track", run, "--to", name, "--out", out, "--json")
        assert said.status == 0, said.err
        counts.append(said.json["rounds"][str(run)])
    assert counts == [1, 2, 0]
    outcome = Run.open(run)
    rounds, accuracies = zip(*sorted(stored(out)), strict=True)
    assert rounds == (1, 2, 3)
    assert accuracies == pytest.approx([r["accuracy"] for r in outcome.records])
    assert list(times(outcome)) == sorted(times(outcome))


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "tensorboard.compat.proto.event_pb2"), ("mlflow", "mlflow.entities"), ("wandb", "wandb")],
)
def test_a_missing_extra_is_named(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    run = half_done(tmp_path / "run")
    monkeypatch.setitem(sys.modules, module, None)
    said = fedfew(capsys, "track", run, "--to", name, "--out", tmp_path / "t")
    assert said.status == 2
    assert "E112" in said.err
    assert ".[track]" in said.err


def test_bad_input(capsys: Capture, tmp_path: Path) -> None:
    assert "E105" in fedfew(capsys, "track", tmp_path, "--to", "paper").err
    assert "E302" in fedfew(capsys, "track", tmp_path, "--to", "mlflow").err
