"""Runs from Python: run, resume, sweep, compare, and what a cell that is run again does."""

from pathlib import Path
from typing import Any

import pytest
from tests.data.digit_folders import write_digits
from tools.reference import api_page

import fedfew
from fedfew.core.errors import FedfewError

SMALL: dict[str, Any] = {
    "rounds": 2, "clients": 4, "participation": 0.5, "labels": 20, "dataset.unlabeled": 80, "dataset.validation": 20,
    "dataset.test": 50, "server.epochs": 1, "model.width": 4, "fleet.kind": "inline",
}  # fmt: skip


def test_a_cell_about_own_images_can_be_run_again(tmp_path: Path) -> None:
    folder = write_digits(tmp_path / "own", server=20, clients=10, test=20, sites=2)
    table = {"dataset": {"name": "folder", "path": str(folder), "size": 28, "channels": 1}, "model": {"name": "cnn"}}
    few = {"rounds": 1, "method.name": "server-only", "fleet.kind": "inline"}
    first = fedfew.run(table, few, out=tmp_path / "run", progress=False)
    again = fedfew.run(table, few, out=tmp_path / "run", if_exists="continue", progress=False)
    assert again.summary == first.summary
    with pytest.raises(FedfewError, match="E307"):
        fedfew.run(table, few | {"labels": 10}, out=tmp_path / "run", if_exists="continue")
    made = fedfew.sweep(table, {"labels": [10, 20]}, few, out=tmp_path / "sweep")
    assert [run.document["labels"] for run in made] == [10, 20]


def test_a_script_shows_its_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = fedfew.run("quick", SMALL, out=tmp_path / "run")
    assert run.finished and run.done == 2
    assert "round 2/2: accuracy" in capfd.readouterr().err
    fedfew.run("quick", SMALL, out=tmp_path / "quiet", progress=False)
    assert capfd.readouterr().err == ""


def test_a_cell_that_is_run_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = fedfew.run("quick", SMALL, out=out, progress=False)
    wrote = (out / "summary.json").stat().st_mtime_ns
    with pytest.raises(fedfew.FedfewError, match="E301"):
        fedfew.run("quick", SMALL, out=out)
    kept = fedfew.run("quick", SMALL, out=out, if_exists="continue", progress=False)
    assert (out / "summary.json").stat().st_mtime_ns == wrote
    assert kept.summary == first.summary and kept.seed == 0
    with pytest.raises(fedfew.FedfewError, match="E307"):
        fedfew.run("quick", SMALL | {"seed": 1}, out=out, if_exists="continue")
    renewed = fedfew.run("quick", SMALL | {"seed": 1}, out=out, if_exists="renew", progress=False)
    assert renewed.seed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(fedfew.FedfewError, match="E103"):
        fedfew.run("quick", SMALL, out=out, if_exists="maybe")  # type: ignore[arg-type]


def test_renewing_replaces_runs_alone_and_only_when_the_new_one_stands(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(fedfew.FedfewError, match="E301"):
        fedfew.run("quick", SMALL, out=tmp_path / "mine", if_exists="renew")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    fedfew.run("quick", SMALL, out=tmp_path / "run", progress=False)
    with pytest.raises(fedfew.FedfewError):
        fedfew.run("quick", SMALL | {"start": "nowhere"}, out=tmp_path / "run", if_exists="renew")
    assert fedfew.Run.open(tmp_path / "run").finished


def test_sweep_and_compare(tmp_path: Path) -> None:
    grid: dict[str, list[Any]] = {"method.name": ["server-only", "fedmix"], "seed": [0, 1]}
    runs = fedfew.sweep("quick", grid, SMALL, out=tmp_path / "sweep")
    assert [(run.method, run.seed) for run in runs] == [
        ("server-only", 0), ("server-only", 1), ("fedmix", 0), ("fedmix", 1),
    ]  # fmt: skip
    wrote = [(run.path / "summary.json").stat().st_mtime_ns for run in runs]
    again = fedfew.sweep("quick", grid, SMALL, out=tmp_path / "sweep")
    assert [(run.path / "summary.json").stat().st_mtime_ns for run in again] == wrote
    table = fedfew.compare(runs)
    assert sorted(map(str, table.rows)) == sorted(map(str, fedfew.compare([tmp_path / "sweep"]).rows))
    assert {row.key["method.name"] for row in table.rows} == {"server-only", "fedmix"}
    assert "against server-only" in str(table) and "<table>" in table._repr_html_()
    frame = pytest.importorskip("pandas") and table.to_frame()
    assert set(frame["seeds"]) == {2}
    with pytest.raises(fedfew.FedfewError, match="E103"):
        fedfew.sweep("quick", {"method.name": "fedmix"}, out=tmp_path / "x")
    with pytest.raises(fedfew.FedfewError, match="E113"):
        fedfew.sweep("quick", {"seed": [0]}, {"seed": 1}, out=tmp_path / "x")


def test_the_reference_names_everything_public() -> None:
    page = api_page()
    assert [name for name in fedfew.__all__ if name not in page] == []
    assert (
        "`fedfew.run(source, overrides=None, *, out=None, if_exists='error', keep_settings=False, progress=True)`"
        in page
    )
