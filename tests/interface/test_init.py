"""fedfew init: a config that suits the folder, explained, and never written over another."""

import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.digit_folders import write_digits
from tests.data.image_zoo import picture, saved
from tests.interface.fedfew_command import Capture, Said, fedfew

from fedfew.config import first_config
from fedfew.config.files import flat, parse_set
from fedfew.config.first_config import left_out
from fedfew.config.schema import load
from fedfew.interface.commands.own import plan_folder


def unwrapped(said: Said) -> str:
    return " ".join(said.err.split())


def colorful(root: Path, side: int, sites: int) -> Path:
    for k in range(sites):
        (root / "clients" / f"site {k:02}").mkdir(parents=True)
        (root / "clients" / f"site {k:02}" / "a.jpg").write_bytes(saved(picture("RGB", side, side + 30), "JPEG"))
    for name in ("cat", "dog"):
        (root / "server" / name).mkdir(parents=True)
        red = picture("RGB", side, side)
        red.paste((200, 10, 10), (0, 0, side // 2, side // 2))
        (root / "server" / name / "a.png").write_bytes(saved(red, "PNG"))
    return root


def test_the_config_suits_grey_digits(tmp_path: Path, capsys: Capture) -> None:
    root = write_digits(tmp_path / "digits")
    said = fedfew(capsys, "init", root, "--json")
    assert said.status == 0
    path = Path(said.json["config"])
    assert path == root / "fedfew.toml"
    config = load(path)
    assert (config.dataset.source.settings["size"], config.dataset.source.settings["channels"]) == (28, 1)
    assert config.dataset.source.settings["path"] == str(root)
    assert config.dataset.validation == 0
    assert config.participation == 1.0
    assert (config.client.batch, config.server.sgd.batch) == (16, 8)
    assert config.server.sgd.epochs == 25  # 60 labels in batches of 8: 8 steps an epoch, about 200 a round
    explained = [line for line in path.read_text().splitlines() if "=" in line and "#" in line]
    assert len(explained) > 15


def test_the_config_suits_many_sites_with_color(tmp_path: Path, capsys: Capture) -> None:
    root = colorful(tmp_path / "photos", 100, 40)
    out = tmp_path / "else where.toml"
    assert fedfew(capsys, "init", root, "--out", out).status == 0
    table = tomllib.loads(out.read_text())
    assert table["dataset"]["path"] == str(root)
    config = load(out)
    assert (config.dataset.source.settings["size"], config.dataset.source.settings["channels"]) == (96, 3)
    assert (config.model.name, config.method_name) == ("efficientnet-lite0", "fedmoments")
    assert config.participation == 1.0
    assert config.dataset.validation == 0
    assert config.model.settings["size"] == 224, "so few images can be seen at the size the backbone was trained on"


def test_grey_images_get_the_backbone_where_it_predicts_the_labels(tmp_path: Path, capsys: Capture) -> None:
    rng = np.random.default_rng(0)
    for name, step in (("coarse", 24), ("fine", 8)):  # chessboards at a random place: no pixel tells them apart
        for i in range(8):
            x, y = rng.integers(0, 48, 2)
            board = ((np.add.outer(np.arange(96) + y, np.zeros(96)) // step + (np.arange(96) + x) // step) % 2) * 200
            for part in (f"server/{name}", "clients/a"):
                (tmp_path / "own" / part).mkdir(parents=True, exist_ok=True)
                Image.fromarray(board.astype(np.uint8) + i).save(tmp_path / "own" / part / f"{name}{i}.png")
    said = fedfew(capsys, "try", tmp_path / "own", "--set", "rounds=1", "--out", tmp_path / "runs")
    assert "efficientnet-lite0 with fedmoments: cross-validated on 16 labels 100 % are right with it" in unwrapped(said)
    assert "the images are grey" in said.err
    set_so = fedfew(capsys, "check", tmp_path / "own", "--set", "model.name=cnn", "--json")
    assert set_so.status == 0, set_so.err
    reasons = plan_folder(tmp_path / "own", {"model.name": "cnn", "method.name": "fedmix"}).suggestion.reasons
    assert reasons[0] == "model and method: cnn with fedmix: as you set it"


@pytest.mark.parametrize(("images", "size"), [(0, 224), (20_000, 224), (40_000, 160), (100_000, 96), (10**7, 96)])
def test_the_backbone_sees_as_much_as_ten_minutes_of_a_core_allow(images: int, size: int) -> None:
    assert first_config._seen(images)[0] == size


def test_without_the_backbone_color_is_learned_from_scratch(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfew.config.first_config.installed", lambda extra: False)
    out = tmp_path / "own.toml"
    assert fedfew(capsys, "init", colorful(tmp_path / "photos", 100, 40), "--out", out).status == 0
    config = load(out)
    assert (config.model.name, config.method_name, config.participation) == ("resnet9", "fedfew", 0.25)


def test_a_network_s_server_needs_no_images_of_sites(tmp_path: Path, capsys: Capture) -> None:
    root = colorful(tmp_path / "photos", 100, 1)
    shutil.rmtree(root / "clients")
    refused = fedfew(capsys, "init", root)
    assert (refused.status, "E206" in refused.err, "--network" in refused.err) == (2, True, True)
    said = fedfew(capsys, "init", root, "--network")
    assert said.status == 0, said.err
    assert f"--config {root / 'fedfew.toml'}" in said.err.replace("\n", "")
    config = load(root / "fedfew.toml", {"clients": 3, "fleet.kind": "flower"})
    assert (config.dataset.source.settings["size"], config.participation) == (96, 1.0)


def test_grey_stored_as_color_is_grey(tmp_path: Path, capsys: Capture) -> None:
    root = write_digits(tmp_path / "digits", server=20, clients=20, test=0)
    for file in root.rglob("*.png"):
        file.write_bytes(saved(picture("RGB"), "PNG"))
    assert fedfew(capsys, "init", root).status == 0
    assert load(root / "fedfew.toml").dataset.source.settings["channels"] == 1


def test_nothing_is_overwritten_without_force(tmp_path: Path, capsys: Capture) -> None:
    root = write_digits(tmp_path / "digits", server=20, clients=20, test=0)
    (root / "fedfew.toml").write_text("mine")
    said = fedfew(capsys, "init", root)
    assert (said.status, (root / "fedfew.toml").read_text()) == (2, "mine")
    assert "E301" in said.err
    assert fedfew(capsys, "init", root, "--force").status == 0
    assert load(root / "fedfew.toml").dataset.name == "folder"


def test_folders_that_do_not_serve_are_told_what_is_missing(tmp_path: Path, capsys: Capture) -> None:
    root = write_digits(tmp_path / "digits", server=20, clients=20, test=0)
    assert "E206" in fedfew(capsys, "init", tmp_path / "gone").err
    assert "E305" in fedfew(capsys, "init", root, "--out", tmp_path / "no" / "where.toml").err
    for file in root.rglob("*.png"):
        file.write_bytes(b"no image")
    assert "E209" in fedfew(capsys, "init", root).err
    shutil.rmtree(root / "clients")
    said = fedfew(capsys, "init", root)
    assert said.status == 2
    assert "clients/<site>/" in said.err


def test_what_the_guide_advises_is_accepted_by_the_config_that_init_writes(tmp_path: Path, capsys: Capture) -> None:
    path = Path(fedfew(capsys, "init", write_digits(tmp_path / "digits"), "--json").json["config"])
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md").read_text("utf-8")
    advice = page.partition("If the sites did not help")[2].partition("\n\n")[0]
    settings = dict(parse_set(text) for text in re.findall(r"`([\w.]+=[^`]+)`", advice))
    assert settings, "the guide names settings to try"
    for key, value in settings.items():
        assert flat(load(path, {key: value}).document)[key] == value
    for key in re.findall(r"`((?:method|server|client|vote)\.[\w.]+)`", advice):
        assert flat(load(path).document)[key] is not None, key


def test_every_label_is_predicted_from_other_folds_only() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 2
    noise = torch.randn(40, 100, generator=rng).double()
    # more directions than images: a fit that saw an image would predict it. 20 ± 3.2 of 40 are right by chance
    assert 10 <= int(left_out(noise, labels).sum()) <= 30
    apart = noise + 20 * labels[:, None].double() / 10  # 2 in each of 100 directions: 20 deviations
    assert bool(left_out(apart, labels).all())
