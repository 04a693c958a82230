"""Pretrained backbones: images to features, with their own preprocessing, under a linear head that is trained."""

from fedfew.models.backbones.pretrained import Backbone, Preprocess, Pretrained, pretrained

__all__ = ["Backbone", "Preprocess", "Pretrained", "pretrained"]
