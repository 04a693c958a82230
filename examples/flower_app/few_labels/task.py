"""What every Flower project has: a model, and its data."""

from dataclasses import replace

import torch
from torch import nn

from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset

digits = DATASETS["mini-mnist"]()  # uint8 images N×1×28×28 with labels


def few_digits() -> Dataset:
    """What the server has: fifty labeled images, and the test images."""
    return replace(digits, name="few digits", train=digits.train.take(torch.arange(50)))


def net() -> nn.Module:
    """A small network of one's own."""
    layers = (nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
