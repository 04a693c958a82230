"""Pretrained backbones: images to features, with their own preprocessing, under a linear head that is trained."""

from fedfew.models.backbones.efficientnet_lite0 import efficientnet_lite0
from fedfew.models.backbones.pretrained import Backbone, Head, Preprocess, Pretrained, pretrained
from fedfew.models.backbones.timm_model import timm_model
from fedfew.models.backbones.transformers_model import transformers_model

__all__ = [
    "Backbone",
    "Head",
    "Preprocess",
    "Pretrained",
    "efficientnet_lite0",
    "pretrained",
    "timm_model",
    "transformers_model",
]
