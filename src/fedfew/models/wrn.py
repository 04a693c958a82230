"""Wide ResNet (Zagoruyko & Komodakis, 2016): WRN-28-2 is the network most semi-supervised results are reported on.

Pre-activation blocks x + conv(act(norm(conv(act(norm x))))) in three stages of 16w, 32w and 64w channels, leaky
ReLU 0.1, average pool, linear with bias: 1,467,610 parameters for 3 channels and 10 classes at depth 28 and width 2.
"""

from typing import Annotated, Literal

from annotated_types import Le
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Count, Doc
from fedfew.models.layers import normalisation, refuse_misfit

WrnNorm = Literal["group", "batch"]


class Block(nn.Module):
    """One pre-activation block. Where the width changes, the shortcut is a 1×1 convolution of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: WrnNorm) -> None:
        super().__init__()
        self.enter = _activation(inputs, norm)
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            _activation(outputs, norm),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        entered = self.enter(x)
        kept = x if self.shortcut is None else self.shortcut(entered)
        out: Tensor = kept + self.branch(entered)
        return out


class GlobalMean(nn.Module):
    """The mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def _activation(channels: int, norm: WrnNorm) -> nn.Sequential:
    return nn.Sequential(*normalisation(channels, norm), nn.LeakyReLU(0.1, inplace=True))


def wrn(
    channels: int,
    size: int,
    classes: int,
    *,
    depth: Annotated[Count, Le(1000), Doc("number of layers: 6n + 4, so 10, 16, 22, 28, …")] = 28,
    width: Annotated[Count, Doc("widening factor: the stages have 16, 32 and 64 times as many channels")] = 2,
    norm: Annotated[WrnNorm, Doc("normalisation; a network this deep does not train without it")] = "group",
) -> nn.Module:
    """WRN-depth-width; with ``norm`` batch it is the network of SemiFL, FixMatch and MixMatch."""
    refuse_misfit("wrn", channels, size)
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise FedfewError("E103", "model.depth", f"is {depth}, but a wide ResNet has 6n + 4 layers: 10, 16, 22, 28, …")
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
    inputs = 16
    for outputs, first in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for number in range(blocks):
            layers.append(Block(inputs, outputs, first if number == 0 else 1, norm))
            inputs = outputs
    return nn.Sequential(*layers, _activation(inputs, norm), GlobalMean(), nn.Linear(inputs, classes))
