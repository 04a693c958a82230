"""fedfew check: counts, unreadable files by name, copies, overlaps, small sites; its memory; and what
commands refuse of images that changed, or of real sites."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.data.digit_folders import put_image, write_digits
from tests.data.image_zoo import READ, SKIPPED, mutants, saved, webp_claiming, zoo
from tests.interface.fedfew_command import Capture, fedfew

from fedfew.core.extras import installed
from fedfew.data import DATASETS
from fedfew.runs.session import Experiment


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    return write_digits(tmp_path / "digits", server=40, clients=60, test=30)


def test_a_sound_folder(digits: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "check", digits, "--json")
    assert said.status == 0
    found = said.json
    counted = {name: len(list((digits / "server" / name).iterdir())) for name in found["classes"]}
    assert {name: count["server"] for name, count in found["classes"].items()} == counted
    assert sum(count["test"] for count in found["classes"].values()) == 30
    sizes = {site.name: len(list(site.iterdir())) for site in (digits / "clients").iterdir()}
    assert found["sites"] == sizes
    assert (found["errors"], found["unreadable"], found["duplicates"], found["list"]) == ([], [], [], None)
    assert not (digits / "check.csv").exists()
    shown = fedfew(capsys, "check", digits)
    assert "hospital-3" in shown.out
    assert "ready to train" in shown.err


def test_the_zoo_is_listed(digits: Path, capsys: Capture) -> None:
    animals = zoo()
    for name, content, _ in animals:
        (digits / "clients" / "hospital-2" / name).write_bytes(content)
    said = fedfew(capsys, "check", digits, "--json")
    assert said.status == 0  # unreadable files are skipped, they do not stop a run
    refused = {name for name, _, fate in animals if fate == SKIPPED}
    assert {Path(entry["file"]).name for entry in said.json["unreadable"]} == refused
    assert all(entry["reason"] for entry in said.json["unreadable"])
    with (digits / "check.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    listed = {Path(row["file"]).name for row in rows if row["finding"] in ("skipped", "remark")}
    assert listed == {name for name, _, fate in animals if fate != READ}
    for entry in said.json["unreadable"]:
        (digits / entry["file"]).unlink()
    elsewhere = digits.parent / "list.csv"
    fedfew(capsys, "check", digits, "--csv", elsewhere)
    assert "skipped" not in elsewhere.read_text("utf-8")


def test_overlap_stops_and_can_be_allowed(digits: Path, capsys: Capture) -> None:
    image = next((digits / "server" / "digit 3").iterdir())
    shutil.copy(image, digits / "test" / "digit 3" / "again.png")
    said = fedfew(capsys, "check", digits, "--json")
    assert said.status == 2
    assert [fault["code"] for fault in said.json["errors"]] == ["E207"]
    assert "E207" in said.err
    assert "in server and test" in (digits / "check.csv").read_text("utf-8")
    config = digits.parent / "own.toml"
    config.write_text('[dataset]\nname = "folder"\npath = "digits"\nsize = 28\nchannels = 1\nallow_overlap = true\n')
    allowed = fedfew(capsys, "check", config, "--json")
    assert allowed.status == 0
    assert "E207" in [fault["code"] for fault in allowed.json["warnings"]]
    assert fedfew(capsys, "run", config, "--set", "dataset.allow_overlap=false").status == 2


def test_small_sites_and_names_by_case_are_told(digits: Path, capsys: Capture) -> None:
    config = digits / "fedfew.toml"
    config.write_text('[dataset]\nname = "folder"\npath = "."\nsize = 28\nchannels = 1\n[client]\nbatch = 999\n')
    said = fedfew(capsys, "check", digits, "--json")
    assert (said.status, said.json["warnings"][0]["code"]) == (0, "E211")
    assert "batch of 999" in said.err
    (digits / "test" / "digit 3").rename(digits / "test" / "DIGIT 3")
    said = fedfew(capsys, "check", digits)
    assert said.status == 2
    assert "DIGIT 3 and digit 3 differ only by case" in said.err


def test_a_site_whose_images_are_negatives_is_named(digits: Path, capsys: Capture) -> None:
    for file in (digits / "clients" / "hospital-2").iterdir():
        with Image.open(file) as image:
            ImageOps.invert(image).save(file)
    said = fedfew(capsys, "check", digits, "--json")
    assert said.status == 0
    assert list(said.json["different"]) == ["hospital-2"] and "brighter" in said.json["different"]["hospital-2"]
    assert "hospital-2 (brighter" in said.err and "looks different from your labels" in said.err


@pytest.mark.skipif(not installed("pretrained"), reason="needs the extra pretrained")
def test_a_noisy_site_is_named_by_its_features(tmp_path: Path, capsys: Capture) -> None:
    photos, rng = DATASETS["mini-cifar"](), np.random.default_rng(0)
    for label, name in enumerate(photos.classes):
        here = np.flatnonzero(photos.train.labels.numpy() == label).tolist()
        parts = {
            f"server/{name}": here[:4],
            "clients/a": here[4:14],
            "clients/b": here[14:24],
            f"test/{name}": here[-4:],
        }
        for folder, own in parts.items():
            for i in own:
                image = photos.train.samples.data[i].numpy().astype(float)
                image += 40 * rng.standard_normal(image.shape) * (folder == "clients/b")
                put_image(tmp_path / folder, image.clip(0, 255).astype(np.uint8), i)
    words = ("--set", "model.name=efficientnet-lite0", "--set", "model.size=96", "--json")
    said = fedfew(capsys, "check", tmp_path, *words)
    assert said.status == 0, said.err
    assert list(said.json["different"]) == ["b"] and "unlike in its features" in said.json["different"]["b"]
    assert "unlike in its features) looks different from your labels" in said.err


def test_configs_of_other_datasets_are_checked_too(tmp_path: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "check", "quick", "--json")
    assert (said.status, said.json["clients"], sum(said.json["classes"].values())) == (0, 20, 50)
    assert "quick: ready" in fedfew(capsys, "check", "quick").out
    assert "E108" in fedfew(capsys, "check", "quick", "--set", "clients=100000").err


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[dataset]\nname = "folder"\n', "E206"),
        ('[dataset]\nname = "folder"\npath = "gone"\n', "E206"),
        ('[dataset]\nname = "folder"\npath = "digits"\nsize = 4\n', "E103"),
        ('[dataset]\nname = "folder"\npath = "digits"\nchannels = 2\n', "E103"),
        ('[dataset]\nname = "folder"\npath = "digits"\n[partition]\nkind = "iid"\n', "E113"),
        ('[dataset]\nname = "mini-mnist"\npath = "digits"\n', "E104"),
    ],
)
def test_bad_configs_have_a_code(digits: Path, capsys: Capture, text: str, code: str) -> None:
    config = digits.parent / "bad.toml"
    config.write_text(text)
    said = fedfew(capsys, "check", config)
    assert (said.status, code in said.err) == (2, True), said.err


LIMIT_MB = 512
COMMAND = """
import atexit, sys
from fedfew.interface.cli import main
def tell():
    lines = open("/proc/self/status").read().splitlines()
    sys.stderr.write(next(line for line in lines if line.startswith("VmHWM")))
atexit.register(tell)
main()
"""


def largest() -> Iterator[tuple[str, bytes]]:
    """Images at the caps, of the kinds that need the most memory."""
    yield "alpha.png", saved(Image.new("RGBA", (5_000, 5_000), (9, 9, 9, 200)), "PNG", compress_level=1)
    yield "deep.png", saved(Image.fromarray(np.full((5_000, 5_000), 900, np.uint16)), "PNG", compress_level=1)
    yield "alpha.webp", saved(Image.new("RGBA", (3_000, 4_000)), "WEBP", lossless=True, method=0, quality=0)
    yield "floats.tif", saved(Image.fromarray(np.full((3_000, 5_000), 0.5, np.float32)), "TIFF", compression="tiff_lzw")
    yield "print.jpg", saved(Image.new("CMYK", (7_071, 7_071)), "JPEG")
    yield "progressive.jpg", saved(Image.new("CMYK", (4_000, 5_000)), "JPEG", progressive=True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_nothing_ends_check_or_takes_512_mb(tmp_path: Path) -> None:
    site = write_digits(tmp_path / "images", server=20, clients=20, test=20) / "clients" / "odd"
    site.mkdir()
    fates = {name: fate for name, _, fate in zoo()} | {"canvas.webp": SKIPPED, "beyond.jpg": SKIPPED}
    for name, content in [*((name, content) for name, content, _ in zoo()), *largest()]:
        (site / name).write_bytes(content)
    (site / "canvas.webp").write_bytes(webp_claiming(3_000)[:-3] + b"\xff\xff\x00")
    (site / "beyond.jpg").write_bytes(saved(Image.new("L", (4_500, 4_500)), "JPEG", progressive=True))
    damaged = {f"damaged-{number:04d}": content for number, content in enumerate(mutants(500))}
    for name, content in damaged.items():
        (site / name).write_bytes(content)

    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "check", str(tmp_path / "images"), "--json"],
        env=os.environ | {"FEDFEW_DATA": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    skipped = {Path(entry["file"]).name: entry["reason"] for entry in found["unreadable"]}
    assert all(skipped.values())
    assert {name for name in skipped if name not in damaged} == {n for n, fate in fates.items() if fate == SKIPPED}
    assert "the limit is 100" in skipped["bomb-scans.jpg"]
    assert "the limit is 20 million" in skipped["beyond.jpg"]
    assert 100 < len(skipped.keys() & damaged.keys()) < 450
    assert found["sites"]["odd"] == len(list(site.iterdir())) - len(skipped)
    peak = int(done.stderr.splitlines()[-1].split()[1]) / 1024
    assert 100 < peak < LIMIT_MB


def test_changed_images_are_noticed_on_resume(digits: Path, tmp_path: Path, capsys: Capture) -> None:
    table: dict[str, Any] = {
        "rounds": 2,
        "dataset": {"name": "folder", "path": str(digits), "size": 16, "channels": 1},
        "model": {"name": "cnn", "width": 4},
        "fleet": {"kind": "inline"},
    }
    session = Experiment.load(table).start(tmp_path / "run")
    next(iter(session.advance()))
    session = None  # type: ignore[assignment]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    first, second = sorted((digits / "clients" / "hospital-0").iterdir())[:2]
    content = first.read_bytes()
    shutil.copy(second, first)  # as many images as before, but not the same
    said = fedfew(capsys, "resume", tmp_path / "copy")
    assert (said.status, "E307" in said.err) == (2, True), said.err
    first.write_bytes(content)
    assert fedfew(capsys, "resume", tmp_path / "copy").status == 0


def test_what_real_sites_cannot_do_is_refused(digits: Path, tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "own.toml"
    config.write_text('[dataset]\nname = "folder"\npath = "digits"\nsize = 16\nchannels = 1\n[model]\nname = "cnn"\n')
    said = fedfew(capsys, "run", config, "--set", 'method.name="all-labels"')
    assert (said.status, "E113" in said.err) == (2, True), said.err
    said = fedfew(capsys, "run", config, "--set", "dataset.unlabeled=5")
    assert (said.status, "E113" in said.err) == (2, True), said.err
