"""ResNet-9 as the FedMix paper uses it: nine layers, 3×3 convolutions without bias, no normalisation, global max pool.

3→w, w→2w + pool, residual(2w), 2w→4w + pool, 4w→8w + pool, residual(8w), global max pool, linear 8w→classes without
bias: 6,568,640 parameters at w = 64 for 3 channels and 10 classes.
"""

from typing import Annotated

from torch import Tensor, nn

from fedfew.core.settings import Count, Doc
from fedfew.models.layers import GlobalMax, Norm, normalisation, refuse_misfit
from fedfew.models.winograd import Conv3x3


def convolution(inputs: int, outputs: int, norm: Norm, *, pool: bool = False) -> nn.Sequential:
    """3×3 convolution → 2×2 max pool if wanted → normalisation → ReLU.

    The paper pools after the ReLU. Both are increasing, so without normalisation the order changes no value and no
    gradient; after pooling first, the rest works on a quarter of the pixels.
    """
    layers: list[nn.Module] = [Conv3x3(inputs, outputs)]
    if pool:
        layers.append(nn.MaxPool2d(2))
    layers += normalisation(outputs, norm)
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


class Residual(nn.Module):
    """x + g(x) with g two convolutions, each followed by its ReLU."""

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        self.branch = nn.Sequential(convolution(channels, channels, norm), convolution(channels, channels, norm))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.branch(x)
        return out


def resnet9(
    channels: int,
    size: int,
    classes: int,
    *,
    width: Annotated[Count, Doc("channels after the first convolution; the last has 8 times as many")] = 64,
    norm: Annotated[Norm, Doc("normalisation after each convolution; the paper's network has none")] = "none",
) -> nn.Module:
    """The paper's network; ``width`` 16 with ``norm`` group is a good choice on a CPU."""
    refuse_misfit("resnet9", channels, size)
    return nn.Sequential(
        convolution(channels, width, norm),
        convolution(width, 2 * width, norm, pool=True),
        Residual(2 * width, norm),
        convolution(2 * width, 4 * width, norm, pool=True),
        convolution(4 * width, 8 * width, norm, pool=True),
        Residual(8 * width, norm),
        GlobalMax(),
        nn.Linear(8 * width, classes, bias=False),
    )
