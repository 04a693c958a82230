"""A run on a pretrained backbone as someone uses it: image files of any kind in, classes and exports out."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.interface.fedfew_command import fedfew

from fedfew import Run
from fedfew.data.samples import Images

CONFIG = """
rounds = 2
labels = 12
dataset = {{ name = "folder", path = "{folder}", size = {size}, channels = 3, flips = false, validation = 0 }}
model = {{ name = "efficientnet-lite0", size = 32 }}
method = {{ name = "fedavg" }}
server = {{ epochs = 20, lr = 0.05, momentum = 0.9 }}
client = {{ batch = 4 }}
fleet = {{ kind = "inline" }}
"""
Capture = pytest.CaptureFixture[str]


def picture(kind: str, number: int, side: int) -> Image.Image:
    """Red squares or blue stripes, on noise; every third is grey with 16 bits, every fourth has one channel."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 60, (side, side, 3))
    if kind == "square":
        pixels[side // 4 : 3 * side // 4, side // 4 : 3 * side // 4, 0] += 180
    else:
        pixels[:, :: side // 8, 2] += 180
    grey = pixels.max(2)
    if number % 3 == 0:
        return Image.fromarray((grey * 256).astype(np.uint16))
    if number % 4 == 0:
        return Image.fromarray(grey.astype(np.uint8))
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for part, groups, count in (("server", ("square", "stripe"), 6), ("test", ("square", "stripe"), 8),
                                ("clients", ("north", "south"), 6)):  # fmt: skip
        for number, group in enumerate(groups):
            (root / part / group).mkdir(parents=True)
            for i in range(count):
                kind = group if part != "clients" else ("square", "stripe")[i % 2]
                seed = 1000 * len(part) + 50 * number + i
                picture(kind, seed, 20 + 40 * (i % 2)).save(root / part / group / f"{i}.png")
    return root


@pytest.mark.parametrize("size", [16, pytest.param(48, marks=pytest.mark.slow)])
def test_from_files_to_files(
    size: int, images: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images smaller and larger than the 32 pixels that the backbone is given."""
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=images, size=size))
    said = fedfew(capsys, "run", tmp_path / "run.toml", "--out", tmp_path / "run", "--json")
    assert said.status == 0, said.err
    assert said.json["accuracy"]["last"] >= 0.75

    predicted = fedfew(capsys, "predict", tmp_path / "run", images / "test", "--json")
    assert predicted.status == 0, predicted.err
    assert len(predicted.json["predictions"]) == 16
    chosen = fedfew(capsys, "label-next", tmp_path / "run", images / "clients", "--json")
    assert chosen.status == 0, chosen.err

    about = Run.open(tmp_path / "run").about_model()
    assert about["shape"] == [3, size, size] and about["backbone"]["preprocess"]["size"] == 32
    for form in ("safetensors", "torch-export", "onnx"):
        if form == "onnx":
            pytest.importorskip("onnxruntime")
        written = fedfew(capsys, "export", tmp_path / "run", "--format", form, "--json")
        assert written.status == 0, written.err
        assert written.json["logit_difference"] <= 1e-5
    extra = {"fedfew.json": ""}
    whole = torch.export.load(tmp_path / "run" / "export" / "model.pt2", extra_files=extra).module()
    assert "scales images to 32×32 (bicubic)" in json.loads(extra["fedfew.json"])["inside"]
    batch = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8)
    torch.testing.assert_close(
        whole(batch), Run.open(tmp_path / "run").network().probabilities(Images(batch)), atol=1e-5, rtol=0
    )
