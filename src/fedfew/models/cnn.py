"""A small network for small images such as MNIST's: three convolutions, so that one core trains a whole federation."""

from typing import Annotated

from torch import nn

from fedfew.core.settings import Count, Doc
from fedfew.models.layers import Norm, convolution, refuse_misfit
from fedfew.models.resnet9 import GlobalMax


def cnn(
    channels: int,
    size: int,
    classes: int,
    *,
    width: Annotated[Count, Doc("channels after the first convolution; the others have 2 and 4 times as many")] = 16,
    norm: Annotated[Norm, Doc("normalisation after each convolution")] = "group",
) -> nn.Module:
    """Three 3×3 convolutions, each with a 2×2 max pool, then a global max pool and a linear layer."""
    refuse_misfit("cnn", channels, size)
    return nn.Sequential(
        convolution(channels, width, norm, pool=True),
        convolution(width, 2 * width, norm, pool=True),
        convolution(2 * width, 4 * width, norm),
        GlobalMax(),
        nn.Linear(4 * width, classes),
    )
