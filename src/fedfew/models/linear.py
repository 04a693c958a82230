"""Models on vectors: a linear layer, whose weights a method on features can compute, or a small network."""

from collections import OrderedDict
from typing import Annotated

from torch import nn

from fedfew.core.settings import Count, Doc
from fedfew.models.layers import Head


def linear(width: int, classes: int) -> Head:
    """A linear layer on vectors."""
    return Head(width, classes)


def mlp(width: int, classes: int, *, hidden: Annotated[Count, Doc("units of the hidden layer")] = 64) -> nn.Sequential:
    """A small network on vectors: one hidden layer with ReLU."""
    layers = {"hidden": nn.Linear(width, hidden), "relu": nn.ReLU(), "head": nn.Linear(hidden, classes)}
    return nn.Sequential(OrderedDict(layers))
