"""The networks a run can train; a new one is a file and a line here (or ``package.module:function`` in the config)."""

from collections.abc import Callable

from torch import nn

from fedfew.models.backbones.efficientnet_lite0 import efficientnet_lite0
from fedfew.models.backbones.timm_model import timm_model
from fedfew.models.backbones.transformers_model import transformers_model
from fedfew.models.cnn import cnn
from fedfew.models.resnet9 import resnet9
from fedfew.models.wrn import wrn

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet9": resnet9,
    "cnn": cnn,
    "wrn": wrn,
    "efficientnet-lite0": efficientnet_lite0,
    "transformers": transformers_model,
    "timm": timm_model,
}
"""Each is called as ``model(channels, size, classes, **settings)`` and returns a module from images to logits."""
SCALABLE = {name: MODELS[name] for name in ("resnet9", "cnn", "wrn")}
"""Networks of any width, initialised from the seed."""
