"""Own images from end to end, as a site network would: init, check, run, resume, predict, label-next, export."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.digit_folders import write_digits
from tests.interface.fedfew_command import Capture, fedfew

from fedfew import Run
from fedfew.data.samples import Images
from fedfew.runs.session import Experiment

SHORT = [
    word
    for key in ("rounds=2", "server.epochs=4", "method.warmup=4", "dataset.flips=false", "model.width=8")
    for word in ("--set", key)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    return write_digits(tmp_path / "images", server=100, clients=160, test=100)


def test_from_a_folder_of_pngs_to_an_exported_model(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert fedfew(capsys, "init", folder).status == 0
    config = folder / "fedfew.toml"
    assert fedfew(capsys, "check", config).status == 0
    said = fedfew(capsys, "run", config, *SHORT, "--set", 'fleet.kind="inline"', "--out", tmp_path / "run", "--json")
    assert said.status == 0, said.err
    written = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert (written["clients"], written["labels"], written["dataset"]["validation"]) == (4, 100, 0)
    assert written["partition"] == {"kind": "sites"}
    assert written["dataset"]["path"] == str(folder)
    records = Run.open(tmp_path / "run").rounds
    assert [len(record["cohort"]) for record in records] == [4, 4]
    assert all(record["correct"] is None for record in records)  # nobody knows the labels of the sites' images
    assert all(0 <= (record["accuracy"] or 0.0) <= 1 for record in records)
    one = ["--set", 'fleet.kind="pool"', "--set", "fleet.workers=1"]
    pool = fedfew(capsys, "run", config, *SHORT, *one, "--out", tmp_path / "pool", "--json")
    assert pool.json["model_sha256"] == said.json["model_sha256"]

    predictions = fedfew(capsys, "predict", tmp_path / "run", folder / "clients", "--confident", "0.9", "--json").json
    assert len(predictions["predictions"]) == 160
    chosen = fedfew(capsys, "label-next", tmp_path / "run", folder / "clients", "-n", "5", "--json").json["chosen"]
    assert {row["image"] for row in chosen} <= {row["image"] for row in predictions["predictions"]}
    exported = fedfew(capsys, "export", tmp_path / "run", "--json").json
    assert exported["logit_difference"] <= 1e-5
    about = Run.open(tmp_path / "run").about_model()
    assert about["classes"] == [f"digit {d}" for d in range(10)]


def test_changed_images_are_noticed_on_resume(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    table: dict[str, Any] = {
        "rounds": 2,
        "dataset": {"name": "folder", "path": str(folder), "size": 16, "channels": 1},
        "model": {"name": "cnn", "width": 4},
        "fleet": {"kind": "inline"},
    }
    session = Experiment.load(table).start(tmp_path / "run")
    next(iter(session.advance()))
    session = None  # type: ignore[assignment]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first, second = sorted((folder / "clients" / "hospital-0").iterdir())[:2]
    content = first.read_bytes()
    shutil.copy(second, first)  # as many images as before, but not the same
    said = fedfew(capsys, "resume", tmp_path / "copy")
    assert (said.status, "E307" in said.err) == (2, True), said.err
    first.write_bytes(content)
    assert fedfew(capsys, "resume", tmp_path / "copy").status == 0


def test_what_real_sites_cannot_do_is_refused(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "own.toml"
    config.write_text('[dataset]\nname = "folder"\npath = "images"\nsize = 16\nchannels = 1\n[model]\nname = "cnn"\n')
    said = fedfew(capsys, "run", config, "--set", 'method.name="all-labels"')
    assert (said.status, "E113" in said.err) == (2, True), said.err
    said = fedfew(capsys, "run", config, "--set", "dataset.unlabeled=5")
    assert (said.status, "E113" in said.err) == (2, True), said.err


def test_a_run_on_arrays(tmp_path: Path, capsys: Capture) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = {
        f"{part}_{kind}": rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8) if kind == "images" else
        (np.arange(count) % 3)[:, None]
        for part, count in (("train", 90), ("val", 9), ("test", 30)) for kind in ("images", "labels")
    }  # fmt: skip
    np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]
    config = tmp_path / "own.toml"
    config.write_text(
        'rounds = 1\nclients = 5\nparticipation = 0.4\nlabels = 12\n[dataset]\nname = "npz"\npath = "own.npz"\n'
        'validation = 9\n[model]\nname = "cnn"\nwidth = 4\n[fleet]\nkind = "inline"\n'
    )
    said = fedfew(capsys, "run", config, "--out", tmp_path / "run", "--json")
    assert said.status == 0, said.err
    about = Run.open(tmp_path / "run").about_model()
    assert (about["shape"], about["classes"]) == ([3, 16, 16], ["0", "1", "2"])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 1
    assert Run.open(tmp_path / "run").network().probabilities(
        Images(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    ).shape == (
        2,
        3,
    )
    assert fedfew(capsys, "check", config, "--json").json["clients"] == 5
