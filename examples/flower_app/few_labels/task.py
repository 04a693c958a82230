"""What every Flower project has: a model, and its data."""

from torch import nn

import fedfew.data

digits = fedfew.data.DATASETS["mini-mnist"]()  # uint8 images N×1×28×28 with labels


def net() -> nn.Module:
    """A small network of one's own."""
    layers = (nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
