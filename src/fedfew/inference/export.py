"""Export of a trained model: one file that takes raw samples and knows its classes, saved if it agrees with torch.

The reference is the model with plain convolutions. Winograd's, used in training, differs from them by about 10⁻⁵ of
the largest value, and no exported file holds it.
"""

import contextlib
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
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.core.network import Network
from fedfew.core.storage import write_atomically, writing
from fedfew.data.rows.encoder import Encoder
from fedfew.inference.forms import Form, form_of
from fedfew.inference.model_card import model_card, write_card
from fedfew.runs.model_file import read_model
from fedfew.runs.run import Run

SUFFIX = {"safetensors": "safetensors", "onnx": "onnx", "torch-export": "pt2"}
HUGGINGFACE = "huggingface"
FORMATS = (*SUFFIX, HUGGINGFACE)
Predict = Callable[..., Tensor]
"""From the inputs of a form (``inference/forms.py``) to probabilities."""
TOLERANCE = 1e-4
"""Largest allowed difference of a logit, as a share of the range of the logits. Float32 in another order of sums gives
a few 10⁻⁶; a lost scale, a swapped channel or another interpolation 10⁻² and more."""
SMALLEST = 1e-30
"""Smaller probabilities are not compared: float32 rounds them to 0."""
HEAD_INPUT = "float32 N×features: the first output of the encoder, a file of its own (see backbone)"


@dataclass(frozen=True)
class OutputAgreement:
    """The largest distance between a file and the model over all samples that were tried."""

    difference: float
    """Of a logit, as a share of the range of the logits (of 1 if they spread less)."""
    classes: float
    """Share of the samples for which both predict the same class; a tie in the model itself counts as equal."""

    @property
    def holds(self) -> bool:
        return self.difference <= TOLERANCE and self.classes == 1.0

    def __str__(self) -> str:
        return f"logits differ by {self.difference:.1g} of their range, {self.classes:.1%} of the classes are equal"


@dataclass(frozen=True)
class Exported:
    """The files written, and how far they are from the model."""

    path: Path
    format: str
    agreement: OutputAgreement
    card: Path | None = None


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
    task = "Text" if "text" in about else "Tabular" if "encoder" in about else "Image"
    config = {
        "architectures": [f"FedfewFor{task}Classification"],
        "model_type": "fedfew",
        "id2label": {str(number): name for number, name in enumerate(about["classes"])},
        "label2id": {name: number for number, name in enumerate(about["classes"])},
        "fedfew": about,
    }
    files = {"config.json": config}
    if task == "Image":
        channels, height, _ = about["shape"]
        config |= {"num_channels": channels, "image_size": height}
        files["preprocessor_config.json"] = _preprocessor(about)
    for name, content in files.items():
        write_atomically(folder / name, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    card = folder / "README.md"
    write_atomically(card, model_card(run, about, done.path, baseline, hub=True).encode())
    return Exported(folder, HUGGINGFACE, done.agreement, card)


def _preprocessor(about: dict[str, Any]) -> dict[str, Any]:
    """The settings of an image processor of transformers."""
    channels, height, width = about["shape"]
    return {
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


def export_network(
    network: Network, about: dict[str, Any], format: str, path: Path, allow_code: Collection[str] = ()
) -> Exported:
    """The same for a network in memory; ``about`` goes into the file with it."""
    form = form_of(network, about, with_encoder=format == "safetensors")
    about = about | ({"input": HEAD_INPUT} if form.names == ("features",) else {})
    writers: dict[str, Callable[[Network, Form, dict[str, Any], Path], Predict]] = {
        "safetensors": partial(_safetensors, allow_code=allow_code),
        "onnx": _onnx,
        "torch-export": _torch_export,
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedfew-") as folder:
        temporary = Path(folder) / path.name
        read_back = writers[format](network, form, about, temporary)
        compared = agreement(form, read_back, form.trial)
        if not compared.holds:
            raise FedfewError("E312", str(path), f"the {format} file does not agree with the model: {compared}")
        write_atomically(path, temporary.read_bytes())
    if "text" in about:
        tokenizer: Any = network.module
        write_atomically(path.with_name("tokenizer.json"), tokenizer.tokenizer.to_str().encode())
    return Exported(path, format, compared)


def described(about: dict[str, Any]) -> dict[str, Any]:
    """What users need to know who have only the file."""
    output = {"output": "probabilities N×classes, in the order of classes"}
    if "text" in about:
        return about | {"input": "int64 tokens and mask N×L, from tokenizer.json next to the file"} | output
    if "encoder" in about:
        inputs = Encoder.described(about["encoder"]).inputs
        numbers = f"float32 N×{len(inputs)}, raw numbers in this order: {', '.join(inputs[:40])}"
        return about | {"input": numbers + (", …" if len(inputs) > 40 else "")} | output
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
        **output,
    }


def _safetensors(
    network: Network, form: Form, about: dict[str, Any], path: Path, *, allow_code: Collection[str] = ()
) -> Predict:
    from safetensors.torch import save

    tensors = {name: view.contiguous() for name, view in network.layout.views(network.vector).items()}
    if "text" not in about:  # the sentence encoder is published, and named by its hash
        tensors |= {name: tensor.contiguous() for name, tensor in network.frozen.items()}
    path.write_bytes(save(tensors, metadata={"fedfew": json.dumps(about, sort_keys=True)}))
    return form_of(*read_model(path, allow_code))


def _torch_export(network: Network, form: Form, about: dict[str, Any], path: Path) -> Predict:
    program = _traced(form)
    with path.open("wb") as file, _quiet():
        torch.export.save(program, file, extra_files={"fedfew.json": json.dumps(about, sort_keys=True)})
    with path.open("rb") as written, _quiet():
        return replace(form, module=torch.export.load(written).module())


def _onnx(network: Network, form: Form, about: dict[str, Any], path: Path) -> Predict:
    require("export", "--format onnx")
    import onnx
    import onnxruntime

    with _quiet():
        program = torch.onnx.export(
            _traced(form), dynamo=True, input_names=form.names, output_names=["probabilities"], verbose=False
        )
    if program is None:
        raise FedfewError("E312", str(path), "torch's exporter gave nothing")
    model = program.model_proto
    onnx.helper.set_model_props(model, {"fedfew": json.dumps(about, sort_keys=True)})
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def predict(*inputs: Tensor) -> Tensor:
        named = {name: part.numpy() for name, part in zip(form.names, inputs, strict=True)}
        return torch.from_numpy(session.run(["probabilities"], named)[0])

    return predict


def _traced(form: Form) -> torch.export.ExportedProgram:
    with _quiet():
        return torch.export.export(form.module, form.example, dynamic_shapes=form.free)


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


def agreement(model: Predict, file: Predict, inputs: tuple[Tensor, ...]) -> OutputAgreement:
    """Compare on these inputs, the first one alone and all in a batch."""
    largest, equal = 0.0, 1.0
    for batch in (tuple(part[:1] for part in inputs), inputs):
        expected, actual = _logits(model(*batch)), _logits(file(*batch))
        spread = max(float((expected.amax(1) - expected.amin(1)).max()), 1.0)
        difference = (actual - expected).abs().max() / spread
        largest = max(largest, float(difference) if bool(difference.isfinite()) else float("inf"))
        torn = expected.amax(1) - expected.gather(1, actual.argmax(1, keepdim=True))[:, 0]
        equal = min(equal, float((torn <= TOLERANCE * spread).double().mean()))
    return OutputAgreement(largest, equal)


def _logits(probabilities: Tensor) -> Tensor:
    """Logits up to a constant for each sample: probabilities near 0 count as much as those near 1."""
    return probabilities.double().clamp_min(SMALLEST).log()
