"""fedfew predict: the same probabilities as in Python, unsure ones marked, and the site's own class mix."""

import csv
import io
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.image_zoo import READ, zoo
from tests.inference.digits_run import digits_run
from tests.interface.fedfew_command import fedfew

from fedfew import Run
from fedfew import predict as predict_tensor
from fedfew.data.images.folders import scan_unlabeled
from fedfew.runs.model_file import SURE, UNSURE, fit_temperature


def accuracy(found: dict[str, Any], truth: dict[str, str]) -> float:
    right = [bool(truth[row["image"]] == row["label"]) for row in found["predictions"]]
    return sum(right) / len(right)


def test_predictions_are_those_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    folder = images / "test" / "digit 4"
    said = fedfew(capsys, "predict", run, folder, "--json")
    assert said.status == 0
    rows = said.json["predictions"]
    assert [row["image"] for row in rows] == sorted(str(path) for path in folder.iterdir())
    expected = predict_tensor(run, scan_unlabeled(folder).read(28, 1).images)
    assert said.json["classes"] == [f"digit {d}" for d in range(10)]
    given = torch.tensor([list(row["probabilities"].values()) for row in rows])
    assert torch.allclose(given, expected, atol=1e-6)
    for row in rows:
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
        assert row["probability"] == row["probabilities"][row["label"]]
        assert row["sure"] is None  # nobody said how sure is sure
    truth = {str(path): path.parent.name for path in (images / "test").rglob("*.png")}
    everything = fedfew(capsys, "predict", run, images / "test", "--json").json
    assert accuracy(everything, truth) > 0.5


def test_unsure_images_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    said = fedfew(capsys, "predict", run, images / "test", "--confident", "0.9", "--json").json
    for row in said["predictions"]:
        assert row["sure"] == (row["probability"] >= 0.9)
    assert 0 < said["unsure"] < len(said["predictions"])
    assert said["unsure"] == sum(not row["sure"] for row in said["predictions"])
    shown = fedfew(capsys, "predict", run, images / "test", "--confident", "0.9")
    assert f"{said['unsure']} of 400 images are below 90.0 %" in shown.out
    first_column = "".join(line.split("  ")[0] for line in shown.out.splitlines()).replace(" ", "")
    assert all(row["image"].replace(" ", "") in first_column for row in said["predictions"][:40])  # never cut


def test_csv_has_every_class(capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    said = fedfew(capsys, "predict", run, images / "test" / "digit 1", "--csv", "--confident", "0.5")
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert len(rows) == len(list((images / "test" / "digit 1").iterdir()))
    for row in rows:
        assert math.isclose(sum(float(row[f"p(digit {d})"]) for d in range(10)), 1, abs_tol=1e-4)
        assert row["sure"] == ("yes" if float(row["probability"]) >= 0.5 else "no")
    unbounded = fedfew(capsys, "predict", run, images / "test" / "digit 1", "--csv").out
    assert {row["sure"] for row in csv.DictReader(io.StringIO(unbounded))} == {""}


def test_a_sites_own_mix_helps_where_the_site_is_skewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    site = tmp_path / "skewed"
    site.mkdir()
    for digit in (3, 5):  # often taken for others that this site never has: the mix gains far more than rounding
        for path in (images / "test" / f"digit {digit}").iterdir():
            shutil.copy(path, site / f"{digit}-{path.name}")
    truth = {str(path): f"digit {path.name[0]}" for path in site.iterdir()}
    plain = fedfew(capsys, "predict", run, site, "--json").json
    adapted = fedfew(capsys, "predict", run, site, "--adapt-prior", "--json").json
    assert plain["prior"] is None
    assert math.isclose(sum(adapted["prior"].values()), 1, abs_tol=1e-4)
    assert adapted["prior"]["digit 3"] + adapted["prior"]["digit 5"] > 0.6
    assert accuracy(adapted, truth) > accuracy(plain, truth)
    assert adapted["temperature"] == Run.open(run).about_model()["temperature"]
    assert "estimated mix" in fedfew(capsys, "predict", run, site, "--adapt-prior").out


def test_calibration_changes_no_label(capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    about = Run.open(run).about_model()
    assert about["calibrated_on"] == 100
    assert math.isclose(sum(about["prior"]), 1, abs_tol=1e-4)
    plain = fedfew(capsys, "predict", run, images / "test" / "digit 2", "--json").json
    honest = fedfew(capsys, "predict", run, images / "test" / "digit 2", "--calibrate", "--json").json
    pairs = list(zip(plain["predictions"], honest["predictions"], strict=True))
    assert all(a["label"] == b["label"] for a, b in pairs)
    flatter = sum(a["probability"] >= b["probability"] for a, b in pairs)
    assert flatter == (len(pairs) if about["temperature"] >= 1 else 0)


def test_the_temperature_undoes_what_was_done() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]  # honest at T = 1
    assert abs(fit_temperature(logits, labels) - 1) < 0.05
    assert abs(fit_temperature(3 * logits, labels) - 3) < 0.15
    assert fit_temperature(logits, logits.argmax(1)) == SURE
    assert fit_temperature(logits, logits.argmin(1)) == UNSURE


def test_odd_files_are_predicted_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, run = digits_run()
    animals = zoo()
    for name, content, _ in animals:
        (tmp_path / name).write_bytes(content)
    said = fedfew(capsys, "predict", run, tmp_path, "--json")
    assert said.status == 0
    readable = {Path(row["image"]).name for row in said.json["predictions"]}
    assert readable >= {name for name, _, fate in animals if fate == READ}
    refused = {Path(entry["image"]).name for entry in said.json["unreadable"]}
    assert readable | refused == {name for name, _, _ in animals}
    assert said.err.count("E209") >= len(refused)


def test_bad_input_has_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    unfinished, damaged, notes = tmp_path / "open", tmp_path / "damaged", tmp_path / "notes"
    for folder in (unfinished, notes):
        folder.mkdir()
    (notes / "note.txt").write_text("no image")
    shutil.copy(run / "run.toml", unfinished)
    shutil.copytree(run, damaged)
    (damaged / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    for trained, path, code in (
        (notes, images / "test", "E302"),
        (run, notes / "gone.png", "E206"),
        (run, notes, "E209"),
        (run, notes / "note.txt", "E209"),
        (unfinished, images / "test", "E310"),
        (damaged, images / "test", "E309"),
    ):
        said = fedfew(capsys, "predict", trained, path)
        assert (said.status, code in said.err) == (2, True), said.err
