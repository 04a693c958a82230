"""Export of a trained model: one file that takes uint8 images and knows its classes, saved if it agrees with torch."""

import contextlib
import copy
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.core.network import Network
from fedfew.core.storage import write_atomically, writing
from fedfew.inference.agreement import Agreement, Predict, agreement
from fedfew.inference.model_card import model_card, write_card
from fedfew.models.winograd import plain
from fedfew.runs.model_file import read_model
from fedfew.runs.run import Run

SUFFIX = {"safetensors": "safetensors", "onnx": "onnx", "torch-export": "pt2"}
HUGGINGFACE = "huggingface"
FORMATS = (*SUFFIX, HUGGINGFACE)


@dataclass(frozen=True)
class Exported:
    """The files written, and how far they are from the model."""

    path: Path
    format: str
    agreement: Agreement
    card: Path | None = None


class FromPixels(nn.Module):
    """The model with its normalisation in front and the softmax behind: uint8 images in, probabilities out.

    Convolutions are the plain ones, as in the exported files.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Network, about: dict[str, Any]) -> None:
        super().__init__()
        self.module = copy.deepcopy(network.module)
        # the network's tensors are views into one vector; a file needs each on its own
        own = {name: value.detach().clone().contiguous() for name, value in network.module.state_dict().items()}
        self.module.load_state_dict(own, assign=True)
        for parameter in self.module.parameters():
            parameter.requires_grad_(False).grad = None
        plain(self.module)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (about["mean"], about["std"]))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, images: Tensor) -> Tensor:
        return torch.softmax(self.module(images.float() * self.scale + self.shift), 1)


def export_model(run: Run, format: str, target: Path | None = None, baseline: float | None = None) -> Exported:
    """Write the model of a run, read it back, compare, and only then move the file to its place, with its model card.

    ``baseline`` is the accuracy of server-only training for the card. The format huggingface makes a folder.
    """
    if format not in FORMATS:
        raise FedfewError("E105", "--format", f"{format!r} is unknown", f"Known: {', '.join(FORMATS)}")
    network, about = run.network(), described(run.about_model())
    if format == HUGGINGFACE:
        return _huggingface(run, network, about, target or run.path / "export" / HUGGINGFACE, baseline)
    path = target or run.path / "export" / f"model.{SUFFIX[format]}"
    done = export_network(network, about, format, path, run.allow_code)
    return replace(done, card=write_card(run, about, done.path, baseline))


def _huggingface(run: Run, network: Network, about: dict[str, Any], folder: Path, baseline: float | None) -> Exported:
    """The layout of the Hugging Face hub: weights, config.json, preprocessor_config.json, and the card as README.md."""
    done = export_network(network, about, "safetensors", folder / "model.safetensors", run.allow_code)
    channels, height, width = about["shape"]
    config = {
        "architectures": ["FedfewForImageClassification"],
        "model_type": "fedfew",
        "num_channels": channels,
        "image_size": height,
        "id2label": {str(number): name for number, name in enumerate(about["classes"])},
        "label2id": {name: number for number, name in enumerate(about["classes"])},
        "fedfew": about,
    }
    preprocessor = {
        "image_processor_type": "CLIPImageProcessor",  # resize, centre crop, rescale, normalise
        "do_convert_rgb": channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": height},
        "resample": Image.Resampling.BICUBIC.value,
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": about["mean"],
        "image_std": about["std"],
    }
    for name, content in (("config.json", config), ("preprocessor_config.json", preprocessor)):
        write_atomically(folder / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    card = folder / "README.md"
    write_atomically(card, model_card(run, about, done.path, baseline, hub=True).encode())
    return Exported(folder, HUGGINGFACE, done.agreement, card)


def export_network(
    network: Network, about: dict[str, Any], format: str, path: Path, allow_code: Collection[str] = ()
) -> Exported:
    """The same for a network in memory; ``about`` goes into the file with it."""
    writers: dict[str, Callable[[Network, dict[str, Any], Path], Predict]] = {
        "safetensors": partial(_safetensors, allow_code=allow_code),
        "onnx": _onnx,
        "torch-export": _torch_export,
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedfew-") as folder:
        temporary = Path(folder) / path.name
        read_back = writers[format](network, about, temporary)
        compared = agreement(_predict(FromPixels(network, about).eval()), read_back, about["shape"])
        if not compared.holds:
            raise FedfewError("E312", str(path), f"the {format} file does not agree with the model: {compared}")
        write_atomically(path, temporary.read_bytes())
    return Exported(path, format, compared)


def described(about: dict[str, Any]) -> dict[str, Any]:
    """What users need to know who have only the file."""
    channels, height, width = about["shape"]
    colors = "grey" if channels == 1 else "RGB"
    if backbone := about.get("backbone"):
        look, means = backbone["preprocess"], "mean {mean}, deviation {std}"
        scaled = f"{look['size']}×{look['size']} ({look['interpolation']})"
        about = about | {"inside": f"the model itself scales images to {scaled}, {means.format(**look)}"}
    return about | {
        "input": f"uint8 N×{channels}×{height}×{width}, {colors}, 0..255",
        "resize": f"shorter side to {height} (bicubic), centre crop {height}×{width}",
        "normalisation": "(pixel / 255 − mean) / std",
        "output": "probabilities N×classes, in the order of classes",
    }


def _predict(module: nn.Module) -> Predict:
    def predict(images: Tensor) -> Tensor:
        with torch.inference_mode():
            probabilities: Tensor = module(images)
        return probabilities

    return predict


def _safetensors(network: Network, about: dict[str, Any], path: Path, *, allow_code: Collection[str] = ()) -> Predict:
    from safetensors.torch import save

    tensors = {name: view.contiguous() for name, view in network.layout.views(network.vector).items()}
    tensors |= {name: tensor.contiguous() for name, tensor in network.frozen.items()}
    path.write_bytes(save(tensors, metadata={"fedfew": json.dumps(about, sort_keys=True)}))
    return _predict(FromPixels(*read_model(path, allow_code)).eval())


def _torch_export(network: Network, about: dict[str, Any], path: Path) -> Predict:
    program = _traced(network, about)
    with path.open("wb") as file, _quiet():
        torch.export.save(program, file, extra_files={"fedfew.json": json.dumps(about, sort_keys=True)})
    with path.open("rb") as written, _quiet():
        return _predict(torch.export.load(written).module())


def _onnx(network: Network, about: dict[str, Any], path: Path) -> Predict:
    require("export", "--format onnx")
    import onnx
    import onnxruntime

    with _quiet():
        program = torch.onnx.export(
            _traced(network, about), dynamo=True, input_names=["images"], output_names=["probabilities"], verbose=False
        )
    if program is None:
        raise FedfewError("E312", str(path), "torch's exporter gave nothing")
    model = program.model_proto
    onnx.helper.set_model_props(model, {"fedfew": json.dumps(about, sort_keys=True)})
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["probabilities"], {"images": images.numpy()})[0])


def _traced(network: Network, about: dict[str, Any]) -> torch.export.ExportedProgram:
    example = torch.zeros(2, *about["shape"], dtype=torch.uint8)
    batch = torch.export.Dim("batch")
    with _quiet():
        return torch.export.export(FromPixels(network, about).eval(), (example,), dynamic_shapes=({0: batch},))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' remarks about their internals; the result is compared afterwards."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)
