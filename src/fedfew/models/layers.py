"""Shared by the networks: normalisation, pooling, the refusal of unfit images, and heads, which also stand alone."""

from typing import Annotated, Literal

from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Count, Doc

Norm = Literal["none", "group", "batch"]


def normalisation(channels: int, norm: Norm) -> list[nn.Module]:
    """The normalisation layer, as a list because there may be none.

    GroupNorm has no state and treats each image alone, so non-IID clients do not affect each other. BatchNorm's
    running statistics are float buffers: they are part of the vector, and are averaged and mixed like weights (or stay
    with the client in FedBN).
    """
    if norm == "group":
        return [nn.GroupNorm(groups(channels), channels)]
    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    return []


def stage(convolution: nn.Conv2d, norm: Norm, *, pool: bool = False) -> nn.Sequential:
    """A convolution → 2×2 max pool if wanted → normalisation → ReLU.

    The paper pools after the ReLU. Both are increasing, so without normalisation the order changes no value and no
    gradient; after pooling first, the rest works on a quarter of the pixels.
    """
    pooled = [nn.MaxPool2d(2)] if pool else []
    return nn.Sequential(convolution, *pooled, *normalisation(convolution.out_channels, norm), nn.ReLU(inplace=True))


def groups(channels: int) -> int:
    """The number of groups for GroupNorm: the largest divisor of ``channels`` up to 8 that leaves 4 channels a group.

    Under 4 channels a group comes near InstanceNorm, which wipes out the contrast between channels that the next layer
    reads. Above 8 groups nothing is gained in nets this narrow, and 8 fits every width that is a multiple of 32.
    """
    return max(g for g in range(1, 9) if channels % g == 0 and (g == 1 or channels // g >= 4))


class GlobalMax(nn.Module):
    """The largest value of each channel: the paper's last pool4 at 32×32, and fit for any other size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3))


class Head(nn.Module):
    """The last layer alone, or after a hidden one: what is trained where features are computed once."""

    classifier: Tensor | None = None
    """The weights of the backbone's own classifier, classes×features, if it has one."""

    def __init__(self, width: int, classes: int, hidden: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(width, hidden), nn.ReLU()) if hidden else nn.Identity()
        self.head = nn.Linear(hidden or width, classes)
        self.inputs = width

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(features))
        return logits


def refuse_misfit(model: str, channels: int, size: int) -> None:
    """Three halvings need 8×8 pixels; other channel counts have no augmentation that makes sense."""
    if size < 8 or channels not in (1, 3):
        raise FedfewError("E110", f"model {model}", f"cannot take images of {channels}×{size}×{size}")


def linear(width: int, classes: int) -> Head:
    """A linear layer on vectors."""
    return Head(width, classes)


def mlp(width: int, classes: int, *, hidden: Annotated[Count, Doc("units of the hidden layer")] = 64) -> Head:
    """A small network on vectors: one hidden layer with ReLU."""
    return Head(width, classes, hidden)
