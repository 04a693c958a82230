"""fedfew track and archive: rounds reach TensorBoard and MLflow once; records are copied without the models."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.interface.fedfew_command import fedfew
from tests.runtime.tiny_run import tiny

from fedfew.core.errors import FedfewError
from fedfew.interface.sinks import times
from fedfew.runs.folder import CONFIG, copy_plans, copy_records, find_runs
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


def test_an_archive_takes_finished_runs_and_names_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    done, begun = half_done(runs / "done"), half_done(runs / "begun")
    finish(done)
    said = fedfew(capsys, "archive", runs, "--to", kept)
    assert said.status == 0, said.err
    assert f"left out, not finished: {begun}" in said.out.replace("\n", "")
    assert [path.name for path in kept.iterdir()] == ["done"]
    copy, original = Run.open(kept / "done"), Run.open(done)
    assert copy.finished
    assert (copy.summary, copy.records, copy.document) == (original.summary, original.records, original.document)
    assert not list(kept.rglob("*.safetensors"))
    assert fedfew(capsys, "archive", runs, "--to", kept, "--json").json["copied"] == 1, "it may be repeated"


def test_an_archive_is_not_made_inside_the_runs_or_of_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = half_done(tmp_path / "runs" / "one")
    for to, code in ((run / "kept", "E301"), (tmp_path / "runs", "E301")):
        said = fedfew(capsys, "archive", tmp_path / "runs", "--to", to)
        assert said.status == 2
        assert code in said.err
    assert fedfew(capsys, "archive", tmp_path / "nothing", "--to", tmp_path / "kept").status == 2


def test_an_archive_replaces_no_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one, other = half_done(tmp_path / "a" / "one"), half_done(tmp_path / "b" / "one")
    finish(one)
    for source, to in ((one.parent, other.parent), (one, one.parent)):
        said = fedfew(capsys, "archive", source, "--to", to)
        assert said.status == 2
        assert "E301" in said.err
    assert not Run.open(other).finished


def test_a_copy_is_no_run_before_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = half_done(tmp_path / "one")
    finish(run)
    written: list[str] = []

    def stop(path: Path, content: bytes) -> None:
        if path.name == CONFIG:
            raise OSError(28, "No space left on device")
        written.append(path.name)
        path.write_bytes(content)

    monkeypatch.setattr("fedfew.runs.folder.write_atomically", stop)
    with pytest.raises(FedfewError, match="E305"):
        copy_records(run, tmp_path / "kept" / "one")
    assert len(written) == 5
    assert find_runs(tmp_path / "kept") == []


def test_plans_of_two_reproductions_are_put_together(tmp_path: Path) -> None:
    for name in ("fig4", "fig5"):
        (tmp_path / name).write_text(f'{{"{name}": 1}}', "utf-8")
        copy_plans(tmp_path / name, tmp_path / "kept" / "reproduce.json")
    assert json.loads((tmp_path / "kept" / "reproduce.json").read_text("utf-8")) == {"fig4": 1, "fig5": 1}
    (tmp_path / "fig5").write_text("{", "utf-8")
    with pytest.raises(FedfewError, match="E309"):
        copy_plans(tmp_path / "fig5", tmp_path / "kept" / "reproduce.json")
