"""Models on vectors: a linear layer, whose weights a method on features can compute, or a small network."""

from typing import Annotated

from fedfew.core.settings import Count, Doc
from fedfew.models.layers import Head


def linear(width: int, classes: int) -> Head:
    """A linear layer on vectors."""
    return Head(width, classes)


def mlp(width: int, classes: int, *, hidden: Annotated[Count, Doc("units of the hidden layer")] = 64) -> Head:
    """A small network on vectors: one hidden layer with ReLU."""
    return Head(width, classes, hidden)
