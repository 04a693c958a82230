"""ResNet-9 as the FedMix paper uses it: nine layers, 3×3 convolutions without bias, no normalisation, global max pool.

3→w, w→2w + pool, residual(2w), 2w→4w + pool, 4w→8w + pool, residual(8w), global max pool, linear 8w→classes without
bias: 6,568,640 parameters at w = 64 for 3 channels and 10 classes.
"""

from typing import Annotated

from torch import Tensor, nn

from fedfew.core.settings import Count, Doc
from fedfew.models.layers import GlobalMax, Norm, refuse_misfit, stage
from fedfew.models.winograd import Conv3x3


class Residual(nn.Module):
    """x + g(x) with g two convolutions, each followed by its ReLU."""

    def __init__(self, channels: int, norm: Norm) -> None:
        super().__init__()
        self.branch = nn.Sequential(*(stage(Conv3x3(channels, channels), norm) for _ in range(2)))

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
        stage(Conv3x3(channels, width), norm),
        stage(Conv3x3(width, 2 * width), norm, pool=True),
        Residual(2 * width, norm),
        stage(Conv3x3(2 * width, 4 * width), norm, pool=True),
        stage(Conv3x3(4 * width, 8 * width), norm, pool=True),
        Residual(8 * width, norm),
        GlobalMax(),
        nn.Linear(8 * width, classes, bias=False),
    )
