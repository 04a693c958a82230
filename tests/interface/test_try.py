"""From a folder to a verdict: fedfew try and fedfew evaluate; and the demo."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.digit_folders import CLASSES, put_image, write_digits, write_photographs
from tests.docs.blocks import blocks_of
from tests.interface.fedfew_command import Capture, fedfew

from fedfew.core.extras import installed
from fedfew.data import DATASETS
from fedfew.data.cache import cache_folder
from fedfew.interface import console
from fedfew.interface.commands import demo
from fedfew.interface.commands.demo import COMPARISONS, WARM
from fedfew.runs.run import Run

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md"
QUICK = [f"--set={key}" for key in (
    "rounds=1", "method.warmup=2", "server.epochs=1", "client.epochs=1", "participation=0.5", "fleet.kind=inline",
)]  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("digits") / "own", server=60, clients=60, test=40)


@pytest.fixture(scope="module")
def tried(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tried") / "runs"


def test_try_ends_with_a_sentence_from_a_pair_of_runs(digits: Path, tried: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "try", digits, *QUICK, "--out", tried)
    assert said.status == 0, said.err
    assert "size: 28 pixels" in said.err and "method" in said.err  # the reasons
    base, own = Run.open(tried / "server-only"), Run.open(tried / "fedfew")
    figures = f"{100 * (own.accuracy() or 0):.1f} % against {100 * (base.accuracy() or 0):.1f} % with your labels alone"
    assert figures in said.out and "on 40 test images" in said.out
    assert "label 60 more images (`fedfew label-next`)" in said.out or "points [" in said.out
    assert (tried / "fedfew.toml").is_file()
    assert own.document["method"]["warmup"] == base.document["method"]["warmup"] == 2


def test_evaluate_shows_the_same_accuracy_and_the_sites_by_name(tried: Path, digits: Path, capsys: Capture) -> None:
    found = fedfew(capsys, "evaluate", tried / "fedfew", "--json").json
    own = Run.open(tried / "fedfew")
    assert found["accuracy"] == pytest.approx(own.accuracy(), abs=1e-6)
    assert sum(map(sum, found["confusion"])) == found["images"] == 40
    assert [row["site"] for row in found["sites"]] == [f"hospital-{k}" for k in range(4)]
    assert all(sum(row["mix"]) == pytest.approx(1, abs=1e-3) for row in found["sites"])
    shown = fedfew(capsys, "evaluate", tried / "fedfew").out
    assert "confusion matrix" in shown and "digit 3" in shown and "hospital-2" in shown
    # on a folder: the whole test folder, with class folders and as a CSV
    whole = fedfew(capsys, "evaluate", tried / "fedfew", digits / "test", "--json").json
    assert whole["images"] == 40


def test_labels_may_come_as_a_csv(tried: Path, digits: Path, tmp_path: Path, capsys: Capture) -> None:
    whole = fedfew(capsys, "evaluate", tried / "fedfew", digits / "test", "--json").json
    flat = as_csv(digits / "test", tmp_path / "test")
    assert fedfew(capsys, "evaluate", tried / "fedfew", flat, "--json").json["confusion"] == whole["confusion"]
    other = tmp_path / "own"
    shutil.copytree(digits / "clients", other / "clients")
    as_csv(digits / "server", other / "server")
    (other / "server" / "stray.png").write_bytes(b"")
    checked = fedfew(capsys, "check", other, "--json").json
    assert sum(row["server"] for row in checked["classes"].values()) == 60
    assert any("stray.png" in row["file"] for row in checked["unreadable"])
    (other / "server" / "labels.csv").write_text("image\n00001.png\n")
    refused = fedfew(capsys, "check", other)
    assert refused.status == 2 and "E206" in refused.err and "image,label" in refused.err


def as_csv(folder: Path, target: Path) -> Path:
    """Class folders as one folder with a labels.csv."""
    target.mkdir(parents=True)
    rows = [("image", "label")]
    for image in sorted(folder.glob("*/*.png")):
        shutil.copy(image, target / image.name)
        rows.append((image.name, image.parent.name))
    with (target / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return target


def test_without_a_test_folder_the_labels_are_cross_validated(digits: Path, tmp_path: Path, capsys: Capture) -> None:
    for part in ("server", "clients"):
        shutil.copytree(digits / part, tmp_path / "own" / part)
    said = fedfew(capsys, "try", tmp_path / "own", *QUICK, "--out", tmp_path / "runs", "--json")
    assert said.status == 0, said.err
    assert "cross-validation" in said.json["sentence"] and "cross-validation on the labels" in said.err
    folds = said.json["folds"]
    assert folds > 1 and said.json["images"] == 60
    tested = [
        Run.open(tmp_path / "runs" / "folds" / str(k) / "fedfew").evaluation["images"] for k in range(1, folds + 1)
    ]
    assert sum(tested) == 60 and max(tested) - min(tested) <= 10
    final = Run.open(said.json["model"])
    assert final.judged is None and sum(final.classes["server"]) == 60


def test_a_folder_that_cannot_be_tried_is_refused(tmp_path: Path, capsys: Capture) -> None:
    write_digits(tmp_path / "few", server=12, clients=10, test=0, sites=1)
    said = fedfew(capsys, "try", tmp_path / "few", *QUICK, "--out", tmp_path / "runs")
    assert said.status == 2 and "E206" in said.err and "single label" in said.err
    assert fedfew(capsys, "try", tmp_path / "nowhere").status == 2


@pytest.mark.skipif(not installed("pretrained"), reason="needs the extra pretrained")
def test_where_the_backbone_knows_the_names_try_says_what_they_give(tmp_path: Path, capsys: Capture) -> None:
    photos = DATASETS["mini-cifar"]()
    for name in ("bird", "truck"):
        here = np.flatnonzero(photos.train.labels.numpy() == photos.classes.index(name)).tolist()
        for folder, own in {f"server/{name}": here[:4], "clients/a": here[4:14], f"test/{name}": here[14:24]}.items():
            for i in own:
                put_image(tmp_path / "photos" / folder, photos.train.samples.data[i].numpy(), i)
    words = ("--set", "model.name=efficientnet-lite0", "--set", "model.size=32", "--set", "rounds=1")
    said = fedfew(capsys, "try", tmp_path / "photos", *words, "--out", tmp_path / "runs", "--json")
    assert said.status == 0, said.err
    assert said.json["labels_names"] == Run.open(tmp_path / "runs" / "labels-names").accuracy()


@pytest.mark.slow
@pytest.mark.skipif(not installed("pretrained"), reason="needs the extra pretrained")
@pytest.mark.skipif(not (cache_folder() / "cifar10").exists(), reason="needs `fedfew data fetch cifar10`")
def test_photographs_with_30_labels_and_5_skewed_sites(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_photographs(tmp_path / "photos")
    said = fedfew(capsys, "try", folder, "--out", tmp_path / "runs", "--json")
    assert said.status == 0, said.err
    found = said.json
    assert found["method"] == "fedmoments" and found["accuracy"]["mean"] >= 0.8
    assert found["helps"] and found["difference"]["low"] > 0, "above the linear probe on the same labels"
    assert found["sentence"].startswith("The sites' images and the classes' names bring +")
    assert fedfew(capsys, "evaluate", found["model"], "--json").json["accuracy"] == found["accuracy"]["mean"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").symlink_to(folder)
    exported = fedfew(capsys, "export", found["model"], "--format", "onnx", "--out", "model.onnx", "--json")
    assert exported.status == 0, exported.err
    [example] = [b.code for b in blocks_of(GUIDE, "own-data.md") if "InferenceSession" in b.code]
    capsys.readouterr()
    exec(compile(example, "example", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.split()[-2] in CLASSES for line in lines)


SHORT = {"rounds": 2, "server.epochs": 1, "client.epochs": 1, "fleet.kind": "inline", "dataset.validation": 0}
FEW_PHOTOS = {"dataset.unlabeled": 40, "dataset.test": 20, "labels": 20, "clients": 4, "model.size": 32}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's methods with two rounds and few images."""
    for data, few in (("digits", {"participation": 0.1}), ("photos", FEW_PHOTOS)):
        preset, arms = COMPARISONS[data]
        shorter = {
            name: replace(arm, settings=arm.settings | dict.fromkeys(arm.settings.keys() & WARM, 1) | SHORT | few)
            for name, arm in arms.items()
        }
        monkeypatch.setitem(COMPARISONS, data, (preset, shorter))


@pytest.mark.parametrize("data", list(COMPARISONS))
def test_console_comparison_and_report_agree_and_every_arm_has_its_pair(
    data: str, tmp_path: Path, capsys: Capture
) -> None:
    said = fedfew(capsys, "demo", "--data", data, "--out", str(tmp_path / "demo"), "--json")
    assert said.json["data"] == data
    compared = fedfew(capsys, "compare", str(tmp_path / "demo"), "--by", "method", "--json").json
    rows = {row["key"]["method.name"]: row for row in compared["rows"]}
    report = Path(said.json["report"]).read_text("utf-8")
    base = rows["server-only"]["accuracy"]["mean"]
    for name, result in said.json["methods"].items():
        assert result["accuracy"] == pytest.approx(rows[name]["accuracy"]["mean"], abs=1e-4)
        assert f"{100 * result['accuracy']:.1f} %" in report
        if name != "server-only":
            assert rows[name]["difference"]["mean"] == pytest.approx(rows[name]["accuracy"]["mean"] - base)
            assert result["difference"].startswith(f"{100 * rows[name]['difference']['mean']:+.1f}")


def test_the_paper_s_methods_are_shown_in_80_columns_with_a_reason_each(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "width", 80)
    said = fedfew(capsys, "demo", "--data", "photos", "--seeds", "2", "--out", str(tmp_path / "demo"))
    lines = said.out.splitlines()
    assert lines[0] == "20 labels, 4 clients with unlabeled photographs, 2 rounds, 2 seeds"
    for arm in COMPARISONS["photos"][1].values():
        (row,) = [line for line in lines if line.startswith(f"{arm.title}  ")]
        assert len(row) <= 80 and " %" in row and ("±" in row)  # in one line, not folded
        assert any(line.startswith(f"{arm.title}: {arm.why}.") for line in lines)
    assert tuple(COMPARISONS["photos"][1])[1:4] == ("labels-names", "fedmix", "fedmatch")


def test_without_the_extra_it_shows_digits_and_says_what_would_show_photographs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "installed", lambda extra: False)
    said = fedfew(capsys, "demo", "--out", str(tmp_path / "demo"))
    assert "unlabeled digits" in said.out
    assert ".[pretrained]" in said.out
