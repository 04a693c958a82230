"""A trained model's safetensors file: weights, class names, image shape, normalisation, calibration."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy import allclose
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedfew.config.names import find, is_foreign
from fedfew.config.schema import check_part
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.storage import digest
from fedfew.core.streams import stream
from fedfew.core.types import ServerState
from fedfew.data.samples import Images, Vectors
from fedfew.models.build import build_model, has_backbone
from fedfew.runs.folder import MODEL
from fedfew.runs.reading import About, check
from fedfew.runs.run import Run

if TYPE_CHECKING:
    from fedfew.config.parts import Parts

PIXELS = 0.1
"""Smaller differences of pixel means and deviations come from other images, not from another normalisation."""
ABOUT = ("shape", "mean", "std", "encoder", "text")
"""What a model file says of the samples."""
SURE, UNSURE = 0.5, 10.0
"""Bounds of T: on a few labels a model may always be right, which does not prove that it will be."""


def model_file(parts: "Parts", state: ServerState) -> bytes:
    """The global model as safetensors: named tensors, and in the metadata all that is needed to use it."""
    tensors = {name: view.contiguous() for name, view in parts.network.layout.views(state.evaluated).items()}
    federation, backbone, model = parts.federation, parts.backbone, parts.config.model
    if not backbone:  # a published backbone is identified by name and hash
        tensors |= {name: tensor.contiguous() for name, tensor in parts.network.frozen.items()}
    parts.network.load(state.evaluated)
    about = {
        "model": {"name": model.name} | dict(model.settings),
        "classes": list(federation.classes),
        "mean": [],
        "std": [],
        **{name: federation.about[name] for name in ABOUT if name in federation.about},
        "temperature": temperature(parts.network, federation.validation),
        "calibrated_on": len(federation.validation),
        "prior": class_shares(federation.server, len(federation.classes)),
    }
    about |= {"backbone": backbone} if backbone else {}
    content: bytes = save_tensors(tensors, metadata={"fedfew": json.dumps(about, sort_keys=True)})
    return content


def load_model(path: str | Path, allow_code: Collection[str] = ()) -> tuple[Network, dict[str, Any]]:
    """A network and its metadata, from a run folder, a model file or an export for Hugging Face.

    A model of your own is imported only if ``allow_code`` contains its name (``package.module:Name``) or its module:
    a file alone never decides what code runs.
    """
    source = Path(path)
    file = source / MODEL if source.is_dir() else source
    if not file.is_file():
        raise FedfewError("E302", str(path), "contains no model" if source.is_dir() else "does not exist")
    return read_model(file, allow_code)


def predict(model: Run | str | Path, samples: Any, allow_code: Collection[str] = ()) -> Tensor:
    """Class probabilities N×C of uint8 images N×C×H×W (or C×H×W for a single one), of vectors N×d, or of texts.

    ``model`` is a run, or what `load_model` takes.
    """
    path, allowed = (model.model_path(), model.allow_code) if isinstance(model, Run) else (model, allow_code)
    network, about = load_model(path, allowed)
    return network.probabilities(fitting(samples, about))


def fitting(samples: Any, about: dict[str, Any]) -> Samples:
    """A user's arrays or data frame for the model that ``about`` describes."""
    if hasattr(samples, "columns"):
        from fedfew.data.rows.datasets import described  # noqa: PLC0415 - only for tables
        from fedfew.data.rows.files import frame_rows  # noqa: PLC0415

        known = about.get("encoder", {}).get("columns", [])
        if "text" in about or {column["name"] for column in known} <= set(samples.columns):
            return described(frame_rows(samples), about)
        samples = samples.to_numpy()
    if "encoder" in about:
        from fedfew.data.rows.encoder import Encoder  # noqa: PLC0415 - only for tables

        return Encoder.described(about["encoder"]).fitting(samples)
    if "text" in about:
        from fedfew.data.samples.texts import Texts  # noqa: PLC0415 - only for texts

        return Texts.of([samples] if isinstance(samples, str) else samples, about["shape"][0], about["text"])
    if len(about["shape"]) == 1:
        return Vectors(torch.as_tensor(samples).view(len(samples), -1, *about["shape"]))
    return Images.fitting(samples, about)


def sealed(content: bytes) -> bytes:
    """A model file with its own SHA-256 in it: nothing else in a run folder could reveal damage to it."""
    tensors, about = load_tensors(content), _metadata(content)["fedfew"]
    return bytes(save_tensors(tensors, metadata={"fedfew": about, "sha256": digest(content)}))


def is_intact(path: Path) -> bool:
    """Whether a sealed model file is unchanged."""
    try:
        content = path.read_bytes()
        seal = _metadata(content)
        return digest(save_tensors(load_tensors(content), metadata={"fedfew": seal["fedfew"]})) == seal["sha256"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return False


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata


def read_model(path: Path, allow_code: Collection[str] = ()) -> tuple[Network, dict[str, Any]]:
    """The network, ready to predict, and its metadata."""
    tensors, about = read_weights(path)
    options = check_part("model", about["model"], str(path), allow_code)
    name = options.pop("name")
    try:
        channels, size = (*map(int, about["shape"]), 0)[:2]
        make = find("model", name) if is_foreign("model", name) else name
        module = build_model(make, channels, size, len(about["classes"]), options, stream(0, "model"))
        network = Network.of(module)
        if has_backbone(module):
            refuse_other_backbone(about, module.about(), path)
            tensors = network.frozen | tensors
        network.load_all(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FedfewError("E309", str(path), f"the weights do not match their metadata ({error})") from None
    network.module.eval()
    return network, about


def refuse_other_backbone(about: dict[str, Any], backbone: Mapping[str, Any], path: Path) -> None:
    """E313 unless the backbone here is the one a file's head was trained on, with the same preprocessing."""
    theirs, ours = about.get("backbone", {}), json.loads(json.dumps(backbone))
    for key in ("sha256", "preprocess", "length"):
        if theirs.get(key) != ours.get(key):
            problem = f"was trained on a backbone with {key} {theirs.get(key)}, the one here has {ours.get(key)}"
            raise FedfewError("E313", str(path), problem)


def first_weights(start: str, parts: "Parts") -> Vector:
    """ω_0: drawn from the seed, or the weights of a finished run or its model file."""
    network, classes, here = parts.network, parts.federation.classes, parts.federation.about
    if not start:
        return network.snapshot()
    path = Path(start)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        code, problem = ("E310", "has no final model") if path.is_dir() else ("E302", "does not exist")
        raise FedfewError(code, f"start = {start!r}", problem, "Give a finished run's folder, or a model file of one")
    weights, about = read_weights(file)
    if list(about["classes"]) != list(classes):
        problem = (
            f"the model in {file} has the classes {', '.join(about['classes'])}, this run has {', '.join(classes)}"
        )
        raise FedfewError("E113", "start", problem, "Start from a run with the same classes")
    theirs, ours = ([*which.get("mean", ()), *which.get("std", ())] for which in (about, here))
    if len(theirs) != len(ours) or not allclose(theirs, ours, atol=PIXELS):
        problem = f"the model in {file} was trained with another pixel normalisation"
        raise FedfewError("E113", "start", problem, "Give dataset.normalize the value it was trained with")
    if about.get("encoder", {}) != here.get("encoder", {}):
        problem = f"the model in {file} was trained on columns that are encoded in another way"
        raise FedfewError("E113", "start", problem, "Start from a run on the same server table")
    refuse_other_backbone(about, parts.backbone, file)
    if has_backbone(network.module):
        weights = network.layout.views(network.snapshot()) | weights  # the run of a head stores no backbone
    try:
        return network.layout.pack({name: weights[name] for name in weights if name not in network.frozen})
    except FedfewError as error:
        problem = f"the weights in {file} do not fit the model: {error.where} {error.message}"
        raise FedfewError("E113", "start", problem, "Give the model the settings it was trained with") from None


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and the metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["fedfew"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # safetensors raises its own type besides the usual ones
        raise FedfewError("E309", str(path), f"is damaged ({error})") from None
    check(About, about, path)
    return tensors, about


def temperature(network: Network, held_out: LabeledSet) -> float:
    """T that minimises the cross-entropy of softmax(z / T) on labels the model has not seen; 1 if there are none.

    C. Guo, G. Pleiss, Y. Sun, K. Weinberger: On Calibration of Modern Neural Networks. ICML 2017.
    """
    if not len(held_out):
        return 1.0
    logarithms = network.probabilities(held_out.samples).double().clamp_min(1e-30).log()
    return fit_temperature(logarithms, held_out.labels)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The cross-entropy is convex in β = 1/T, so its slope has one zero: found by bisection."""

    def slope(beta: float) -> float:
        expected = ((beta * logits).softmax(1) * logits).sum(1)
        return float((expected - logits.gather(1, labels[:, None])[:, 0]).mean())

    low, high = 1 / UNSURE, 1 / SURE
    if slope(low) > 0:
        return UNSURE
    if slope(high) < 0:
        return SURE
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return round(2 / (low + high), 6)


def class_shares(labeled: LabeledSet, classes: int) -> list[float]:
    """The class mix of the server's labels; uniform if it has none."""
    counts = torch.bincount(labeled.labels, minlength=classes).double() if len(labeled) else torch.ones(classes)
    return [round(share, 6) for share in (counts / counts.sum()).tolist()]
