"""fedfew export: files that other programs can use, each compared with the model before it counts."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inference.digits_run import digits_run
from tests.interface.fedfew_command import fedfew
from torch import Tensor

from fedfew import Run
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.data.images.folders import scan_unlabeled
from fedfew.data.samples import Images
from fedfew.inference import export as exporting
from fedfew.inference.export import Predict
from fedfew.inference.forms import Form


@pytest.fixture
def digits() -> tuple[Path, Tensor, Tensor]:
    """The run, real images, and what the model says about them."""
    images, run = digits_run()
    batch = scan_unlabeled(images / "test" / "digit 7").read(28, 1).images
    return run, batch, Run.open(run).network().probabilities(Images(batch))


def check_metadata(about: dict[str, Any]) -> None:
    assert about["classes"] == [f"digit {d}" for d in range(10)]
    assert about["shape"] == [1, 28, 28]
    assert {"mean", "std", "input", "resize", "normalisation", "temperature", "prior"} <= set(about)


def test_onnx_runs_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run, batch, expected = digits
    said = fedfew(capsys, "export", run, "--format", "onnx", "--out", tmp_path / "m.onnx", "--json")
    assert said.status == 0, said.err
    assert said.json["logit_difference"] <= 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    [given] = session.get_inputs()
    assert (given.name, given.type) == ("images", "tensor(uint8)")
    for part in (batch, batch[:1], batch[:3]):
        [found] = session.run(None, {"images": part.numpy()})
        np.testing.assert_allclose(found, expected[: len(part)], atol=1e-5)
    check_metadata(json.loads(session.get_modelmeta().custom_metadata_map["fedfew"]))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["MODEL_CARD.md", "m.onnx"]


def test_torch_export_needs_no_fedfew(tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: Any) -> None:
    run, batch, expected = digits
    said = fedfew(capsys, "export", run, "--format", "torch-export", "--out", tmp_path / "m.pt2", "--json")
    assert said.status == 0, said.err
    assert said.json["logit_difference"] <= 1e-5
    extra = {"fedfew.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    for part in (batch, batch[:1]):
        assert torch.allclose(program.module()(part), expected[: len(part)], atol=1e-5)
    check_metadata(json.loads(extra["fedfew.json"]))


def test_a_file_that_disagrees_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: tuple[Path, Tensor, Tensor]
) -> None:
    write = exporting._safetensors

    def twisted(network: Network, form: Form, about: dict[str, Any], path: Path, **_: object) -> Predict:
        read_back = write(network, form, about, path)
        return lambda images: read_back(images).roll(1, 1)

    monkeypatch.setattr(exporting, "_safetensors", twisted)
    target = tmp_path / "m.safetensors"
    target.write_bytes(b"the old one")
    with pytest.raises(FedfewError, match="E312"):
        exporting.export_model(Run.open(digits[0]), "safetensors", target)
    assert target.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [target]


def test_bad_input_and_a_missing_extra_have_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits: Any
) -> None:
    run = digits[0]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        said = fedfew(capsys, "export", run, "--format", "onnx", "--out", tmp_path / "m.onnx")
    assert said.status == 2 and "E112" in said.err and ".[export]" in said.err
    assert list(tmp_path.iterdir()) == []
    assert "E105" in fedfew(capsys, "export", run, "--format", "pickle").err
    assert "E302" in fedfew(capsys, "export", tmp_path).err
    (tmp_path / "file").write_bytes(b"")
    assert "E305" in fedfew(capsys, "export", run, "--out", tmp_path / "file" / "m.safetensors").err
    shutil.copytree(run, tmp_path / "run")
    model = tmp_path / "run" / "model.safetensors"
    model.write_bytes(model.read_bytes().replace(b"cnn", b"wrn"))  # the weights of another network
    assert "E307" in fedfew(capsys, "export", tmp_path / "run").err
