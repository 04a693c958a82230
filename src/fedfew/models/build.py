"""From a model's name to a module whose weights come from one given generator."""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import torch
from torch import nn

from fedfew.core.errors import FedfewError
from fedfew.models import MODELS
from fedfew.models.backbones import Head, Pretrained


def build_model(
    model: str | Callable[..., nn.Module],
    channels: int,
    size: int,
    classes: int,
    options: Mapping[str, Any],
    rng: torch.Generator,
) -> nn.Module:
    """A fresh module; equal generators give equal bits, and the global random state is as it was before.

    ``model`` is a name of ``MODELS`` or a function of one's own. The latter keeps the weights that it sets itself
    (it may load trained ones); what it draws from torch's global generator is made to follow from ``rng``.
    """
    if isinstance(model, str) and model not in MODELS:
        raise FedfewError("E105", "model.name", f"there is no model {model!r}, only {', '.join(MODELS)}")
    make = MODELS[model] if isinstance(model, str) else model
    seed = int(torch.randint(2**63 - 1, (), generator=rng))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = make(channels, size, classes, **options)
    if isinstance(module, Pretrained):
        initialise(module.head, rng)
    elif make in MODELS.values():
        initialise(module, rng)
    return module


def build_head(width: int, classes: int, rng: torch.Generator) -> Head:
    """The head of a pretrained model by itself, with the weights that ``build_model`` would draw for it."""
    torch.randint(2**63 - 1, (), generator=rng)
    head = Head(width, classes)
    initialise(head, rng)
    return head


def initialise(module: nn.Module, rng: torch.Generator) -> None:
    """Draw all weights: Kaiming-normal convolutions (fan in), a small last layer, norms at 1 and 0.

    Fan in keeps the forward scale where no normalisation does: the rms grows from 0.5 to 3 through ResNet-9, whose two
    residual additions and four max pools are what adds to it. The last layer is small because logits of several units
    at the start would be confident votes about nothing, and a first step in a random direction.
    """
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                fan_in = layer.weight[0].numel()
                layer.weight.normal_(0.0, sqrt(2 / fan_in), generator=rng)
            elif isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, 0.1 / sqrt(layer.in_features), generator=rng)
                if layer.bias is not None:
                    layer.bias.zero_()
            elif isinstance(layer, nn.GroupNorm | nn.BatchNorm2d):
                layer.weight.fill_(1.0)
                layer.bias.zero_()
