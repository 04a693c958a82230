"""Reading a trained model from its safetensors file: weights, class names, image shape, normalisation."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy import allclose
from safetensors import safe_open
from torch import Tensor

from fedfew.config.names import find, is_own
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.network import Network, Pixels
from fedfew.core.streams import stream
from fedfew.models import MODELS
from fedfew.models.backbones import Pretrained
from fedfew.models.build import build_model
from fedfew.runs.folder import MODEL

PIXELS = 0.1
"""Means and deviations of pixels in [0, 1] that are nearer than this come from other images, not another way."""


def read_model(path: Path) -> tuple[Network, dict[str, Any]]:
    """The network, ready to predict, and what is known about it."""
    tensors, about = read_weights(path)
    try:
        name, options = about["model"]["name"], {k: v for k, v in about["model"].items() if k != "name"}
        channels, size = about["shape"][0], about["shape"][1]
        make = find("model", name, MODELS) if is_own(name) else name
        module = build_model(make, channels, size, len(about["classes"]), options, stream(0, "model"))
        network = Network.of(module, Pixels(tuple(about["mean"]), tuple(about["std"])))
        if isinstance(module, Pretrained):
            refuse_other_backbone(about, module.about(), path)
            tensors = network.frozen | tensors
        network.load_all(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FedfewError("E309", str(path), f"the weights do not fit what is said about them ({error})") from None
    network.module.eval()
    return network, about


def refuse_other_backbone(about: dict[str, Any], backbone: Mapping[str, Any], path: Path) -> None:
    """E313 unless the backbone here is the one a file's head was trained on, with the same preprocessing."""
    theirs, ours = about.get("backbone", {}), json.loads(json.dumps(backbone))
    for key in ("sha256", "preprocess", "length"):
        if theirs.get(key) != ours.get(key):
            what = f"was trained on a backbone with {key} {theirs.get(key)}, the one here has {ours.get(key)}"
            raise FedfewError("E313", str(path), what)


def first_weights(start: str, network: Network, classes: Sequence[str], backbone: Mapping[str, Any]) -> Vector:
    """ω_0: as drawn from the seed, or those of a finished run or of its model file."""
    if not start:
        return network.snapshot()
    path = Path(start)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        code, what = ("E310", "has no final model") if path.is_dir() else ("E302", "does not exist")
        raise FedfewError(code, f"start = {start!r}", what, "Give a finished run's folder, or a model file of one")
    weights, about = read_weights(file)
    if list(about["classes"]) != list(classes):
        what = (
            f"the model in {file} knows the classes {', '.join(about['classes'])}, here they are {', '.join(classes)}"
        )
        raise FedfewError("E113", "start", what, "Start from a run with the same classes")
    if not allclose((*about["mean"], *about["std"]), (*network.pixels.mean, *network.pixels.std), atol=PIXELS):
        what = f"the model in {file} was trained on pixels normalised in another way"
        raise FedfewError("E113", "start", what, "Give dataset.normalize the value it was trained with")
    refuse_other_backbone(about, backbone, file)
    if isinstance(network.module, Pretrained):
        weights = network.layout.views(network.snapshot()) | weights  # a head's run holds no backbone
    try:
        return network.layout.pack({name: weights[name] for name in weights if name not in network.frozen})
    except FedfewError as error:
        what = f"the weights in {file} do not fit the model: {error.place} {error.what}"
        raise FedfewError("E113", "start", what, "Give the model the settings it was trained with") from None


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and the metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["fedfew"])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - not a dict
    except Exception as error:  # safetensors raises its own type besides the usual ones
        raise FedfewError("E309", str(path), f"is damaged ({error})") from None
