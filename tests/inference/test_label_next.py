"""fedfew label-next: the uncertain images first, no two alike, each with its reason."""

import csv
import io
import shutil
from pathlib import Path

import pytest
import torch
from tests.inference.digits_run import digits_run
from tests.interface.fedfew_command import fedfew
from torch import nn

from fedfew.core.network import Network
from fedfew.data.samples import Images
from fedfew.inference.embedding import embed
from fedfew.inference.label_next import choose


def test_the_choice_by_hand() -> None:
    # four images on a line in feature space; uncertainties 1 - (p1 - p2): 0.9, 0.8, 0.4, 0.8
    shares = [0.55, 0.60, 0.80, 0.60]
    probabilities = torch.tensor([[p, 1 - p] for p in shares])
    features = torch.tensor([[0.0], [0.1], [1.0], [0.6]])
    picks = choose(probabilities, features, 4)
    # first the most uncertain (0); then 0.8·0.6 beats 0.4·1.0 and 0.8·0.1; then 0.4·0.4 beats 0.8·0.1
    assert [pick.index for pick in picks] == [0, 3, 2, 1]
    assert picks[0].distance is None
    assert [round(pick.distance or 0, 4) for pick in picks[1:]] == [0.6, 0.4, 0.1]
    assert [round(pick.uncertainty, 4) for pick in picks] == [0.9, 0.8, 0.4, 0.8]


def test_copies_come_last() -> None:
    probabilities = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.9, 0.1]])
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert [pick.index for pick in choose(probabilities, features, 3)] == [0, 2, 1]
    assert len(choose(probabilities, features, 99)) == 3


def test_features_are_the_input_of_the_last_layer() -> None:
    flat, linear = nn.Flatten(), nn.Linear(4, 3)
    network = Network.of(nn.Sequential(flat, linear))
    images = torch.randint(1, 256, (5, 1, 2, 2), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    features, probabilities = embed(network, Images(images), batch=2)
    plain = images.flatten(1).float() / 255
    assert torch.allclose(features, plain, atol=1e-6)
    assert torch.equal(probabilities, network.probabilities(Images(images), 2))
    without = Network.of(nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()))
    assert torch.allclose(embed(without, Images(images))[0].square(), without.probabilities(Images(images)), atol=1e-6)


def test_images_of_a_site_are_suggested_with_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, run = digits_run()
    site = tmp_path / "site"
    shutil.copytree(images / "clients" / "hospital-1", site)
    (site / "broken.png").write_bytes(b"no image")
    said = fedfew(capsys, "label-next", run, site, "-n", "12", "--json")
    assert said.status == 0
    chosen = said.json["chosen"]
    assert [row["rank"] for row in chosen] == list(range(1, 13))
    assert len({row["image"] for row in chosen}) == 12
    assert all(Path(row["image"]).is_file() and row["reason"] for row in chosen)
    assert said.json["unreadable"][0]["image"].endswith("broken.png")
    everyone = fedfew(capsys, "label-next", run, site, "-n", "100000", "--json").json
    assert len(everyone["chosen"]) == everyone["considered"]
    mean = sum(row["uncertainty"] for row in everyone["chosen"]) / len(everyone["chosen"])
    assert sum(row["uncertainty"] for row in chosen) / 12 > mean
    assert chosen[0]["uncertainty"] == max(row["uncertainty"] for row in everyone["chosen"])
    rows = list(csv.DictReader(io.StringIO(fedfew(capsys, "label-next", run, site, "-n", "3", "--csv").out)))
    assert [row["image"] for row in rows] == [row["image"] for row in chosen[:3]]
    assert rows[0]["reason"].endswith("the least certain of all")
    assert f"3 of {everyone['considered']} images" in fedfew(capsys, "label-next", run, site, "-n", "3").out


def test_bad_input_has_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, run = digits_run()
    assert "E209" in fedfew(capsys, "label-next", run, tmp_path).err
    assert "E206" in fedfew(capsys, "label-next", run, tmp_path / "gone").err
    assert "E302" in fedfew(capsys, "label-next", tmp_path, tmp_path).err
    assert fedfew(capsys, "label-next", run, tmp_path, "-n", "0").status == 2
