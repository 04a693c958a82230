"""From a model's name to a module whose weights come from one given generator."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import TypeIs

from fedfew.core.environment import machine_memory
from fedfew.core.errors import FedfewError
from fedfew.models import MODELS, SCALABLE
from fedfew.models.layers import Head

if TYPE_CHECKING:
    from fedfew.models.backbones import Pretrained

COPIES = 4
"""Copies of a model that training needs at least: weights, gradient, what was received and what is sent."""
SHAPE = ("channels", "size", "classes")
"""The arguments about the images that a model may take."""
OF_TEXTS = ("source", "train", "hidden")
"""The settings of a model of transformers that it has for texts too."""
WIDTH = "width"
"""The argument that a model of vectors takes instead of channels and size."""


def has_backbone(module: nn.Module) -> TypeIs["Pretrained"]:
    """Whether a model stands on a pretrained backbone; a run of any other model does not import one."""
    return isinstance(module, Head) and hasattr(module, "backbone")


def build_model(
    model: str | Callable[..., nn.Module],
    channels: int,
    size: int,
    classes: int,
    options: Mapping[str, Any],
    rng: torch.Generator,
) -> nn.Module:
    """A fresh module; equal generators give equal bits, and the global random state is restored.

    ``model`` is a name of ``MODELS`` or a user's function. The latter keeps the weights that it sets itself (it may
    load trained ones); its draws from torch's global generator are seeded from ``rng``. It gets those of channels,
    size and classes that it has parameters for, and is tried on two black images. For vectors, ``channels`` is their
    width and ``size`` is 0.
    """
    if isinstance(model, str) and model not in MODELS:
        raise FedfewError("E105", "model.name", f"there is no model {model!r}, only {', '.join(MODELS)}")
    if model == "transformers" and not size:  # of texts
        model, options = "sentence", {name: value for name, value in options.items() if name in OF_TEXTS}
    make = MODELS[model] if isinstance(model, str) else model
    seed = int(torch.randint(2**63 - 1, (), generator=rng))
    with torch.random.fork_rng(devices=[]):
        positional, named = shape_arguments(make, channels, size, classes)
        if model in SCALABLE:
            _refuse_too_large(lambda: make(*positional, **named, **options), f"{model} with {_shown(options)}")
        torch.default_generator.manual_seed(seed)
        module = make(*positional, **named, **options)
    if has_backbone(module):
        initialise(nn.ModuleList([module.hidden, module.head]), rng)
    elif isinstance(model, str):
        initialise(module, rng)
    else:
        _check(module, (channels, size, size) if size else (channels,), classes)
    return module


def _refuse_too_large(make: Callable[[], nn.Module], message: str) -> None:
    """E119 for a model that cannot be trained in this machine's memory; it is built here without allocating any."""
    try:
        with torch.device("meta"):
            weights = sum(parameter.numel() for parameter in make().parameters())
    except (RuntimeError, TypeError, OverflowError):  # more weights than 64 bits can count
        raise FedfewError("E119", "model", f"{message} has more weights than can be counted") from None
    need, have = 4 * COPIES * weights, machine_memory()
    if need > have:
        message = f"{message} has {weights:,} weights and needs at least {need / 1e9:,.0f} GB"
        raise FedfewError("E119", "model", f"{message}; {have / 1e9:,.1f} GB are available")


def _shown(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in options.items()) or "its defaults"


def shape_arguments(
    make: Callable[..., Any], channels: int, size: int, classes: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """How a model is called: with those of channels, size and classes that it names, or with all in order.

    For vectors (``size`` is 0) with width and classes.
    """
    values = dict(zip(SHAPE, (channels, size, classes), strict=True)) if size else {WIDTH: channels, "classes": classes}
    parameters = inspect.signature(make).parameters
    if all(name in values for name in required(parameters.values())):
        return (), {name: value for name, value in values.items() if name in parameters}
    return tuple(values.values()), {}


def required(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """The names of the parameters that must be given."""
    open_ended = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in open_ended]


def _check(module: nn.Module, image: tuple[int, ...], classes: int) -> None:
    """E115 unless a user's model returns logits for these images."""
    if not isinstance(module, nn.Module):
        raise FedfewError("E115", "model.name", f"returned a {type(module).__name__}, which is not a torch.nn.Module")
    was_training = module.training
    module.eval()
    shape = "×".join(map(str, image))
    try:
        with torch.no_grad():
            logits = module(torch.zeros(2, *image))
    except Exception as error:  # the user's own code
        message = f"fails on samples of {shape}: {type(error).__name__}: {error}"[:300]
        raise FedfewError("E115", "model.name", message) from error
    finally:
        module.train(was_training)
    result = tuple(getattr(logits, "shape", ()))
    if result != (2, classes):
        message = f"returns {result} for two samples of {shape}; {classes} classes need (2, {classes})"
        raise FedfewError("E115", "model.name", message)


def build_head(width: int, classes: int, rng: torch.Generator, hidden: int = 0) -> Head:
    """The head of a pretrained model alone, with the weights that ``build_model`` would draw for it."""
    torch.randint(2**63 - 1, (), generator=rng)
    head = Head(width, classes, hidden)
    initialise(head, rng)
    return head


def initialise(module: nn.Module, rng: torch.Generator) -> None:
    """Draw all weights: Kaiming-normal convolutions (fan in), a small last layer, norms at 1 and 0.

    Fan in keeps the forward scale without normalisation: the rms grows from 0.5 to 3 through ResNet-9, because of its
    two residual additions and four max pools. The last layer is small because large logits at the start would be
    confident but meaningless votes, and a first step in a random direction.
    """
    last = next((layer for layer in reversed(list(module.modules())) if isinstance(layer, nn.Linear)), None)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                fan_in = layer.weight[0].numel()
                layer.weight.normal_(0.0, sqrt(2 / fan_in), generator=rng)
            elif isinstance(layer, nn.Linear):
                scale = 0.1 if layer is last else sqrt(2)
                layer.weight.normal_(0.0, scale / sqrt(layer.in_features), generator=rng)
                if layer.bias is not None:
                    layer.bias.zero_()
            elif isinstance(layer, nn.GroupNorm | nn.BatchNorm2d):
                layer.weight.fill_(1.0)
                layer.bias.zero_()
