"""Own images on the command line: changed ones are noticed, and what real sites cannot do is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.data.digit_folders import write_digits
from tests.interface.fedfew_command import Capture, fedfew

from fedfew.runs.session import Experiment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    return write_digits(tmp_path / "images", server=100, clients=160, test=100)


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
