"""What a site holds: samples of one kind, with the views of them that training asks for.

A kind of samples (images, vectors) is a class in ``data/samples``. Methods, objectives and fleets use this interface
and never ask which kind they have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""A user's own view: maps uint8 images N×C×H×W (or vectors N×1×d) and the site's generator to a batch of that shape;
images may be returned as floats in 0..255."""


@dataclass(frozen=True)
class StrongView:
    """How a strong view of an image is made; None leaves a step out. Vectors have one strong view of their own."""

    shift: int | None = 2
    """First a weak view with shifts of up to so many pixels."""
    layers: int = 2
    """Then so many operations of RandAugment,"""
    magnitude: int | tuple[int, int] = 10
    """each at a level below this; with a pair, every image draws its own bound from that range."""
    identity: bool = True
    """Whether leaving the image as it is counts among the operations."""
    hole: float | None = 0.5
    """Last a grey square with this share of the image's side."""


STANDARD = StrongView()


@dataclass(frozen=True)
class OwnView:
    """A view made by the user's own function, which the config names under ``key``."""

    make: Augment
    key: str

    def __call__(self, data: Tensor, rng: torch.Generator) -> Tensor:
        """The function's result; E115 if its shape is not that of ``data``."""
        made = self.make(data, rng)
        if not isinstance(made, Tensor) or made.shape != data.shape:
            result = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            name = getattr(self.make, "__name__", self.make)
            raise FedfewError("E115", self.key, f"{name} gave {result} for {tuple(data.shape)}")
        return made


@dataclass(frozen=True, eq=False)
class Samples(ABC):
    """Samples of one kind, in one tensor with a row for each. Every view is again a set of samples of that kind."""

    data: Tensor

    def __len__(self) -> int:
        return len(self.data)

    def like(self, data: Tensor) -> Self:
        """Other data of the same kind."""
        return replace(self, data=data)

    def take(self, indices: Tensor) -> Self:
        """The samples at these positions, or those that a mask selects."""
        here = indices.to(self.data.device)
        return self.like(self.data[here] if here.dtype == torch.bool else self.data.index_select(0, here))

    def to(self, device: torch.device) -> Self:
        """The samples on a device."""
        return self.like(self.data.to(device))

    def split(self, size: int) -> list[Self]:
        """Consecutive batches; the last one may be smaller."""
        return [self.like(part) for part in self.data.split(size)]

    def join(self, *others: "Samples") -> Self:
        """These samples, then the others."""
        return self.like(torch.cat([self.data, *(other.data for other in others)]))

    def mixed(self, other: "Samples", share: Tensor) -> Self:
        """MixUp: share·this + (1 − share)·other, sample by sample, as floats."""
        return self.like(blend(self.data, other.data, share))

    @abstractmethod
    def inputs(self, device: torch.device) -> Tensor:
        """What a network is fed."""

    @abstractmethod
    def weak(self, rng: torch.Generator, shift: int = 2) -> Self:
        """A view that hardly changes a sample; images are shifted by at most ``shift`` pixels."""

    @abstractmethod
    def strong(self, rng: torch.Generator, how: StrongView | OwnView = STANDARD) -> Self:
        """A view that changes a sample as much as its class allows."""

    @abstractmethod
    def views(self, count: int, rng: torch.Generator) -> list[Self]:
        """The family π_1 … π_A of different weak views."""

    @abstractmethod
    def noisy(self, deviation: float, rng: torch.Generator) -> Self:
        """Gaussian noise added, as floats; ``deviation`` is relative to the range or size of the data."""

    @abstractmethod
    def random(self, rng: torch.Generator) -> Self:
        """One sample that is nothing but noise."""

    @abstractmethod
    def vectors(self) -> Tensor:
        """Each sample as one vector, N×d in float64 on the host; E113 for a kind that has none."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """All but the data, in JSON's types: the kind, the shape of a sample, and what its views and input need."""

    @abstractmethod
    def fault(self) -> str:
        """Why the data cannot be used; empty if it can."""

    @abstractmethod
    def standardizer(self, *others: Self) -> Callable[[Self], Self]:
        """A function that makes networks see samples scaled to mean 0 and deviation 1 over these and the others."""


@dataclass(frozen=True, eq=False)
class LabeledSet:
    """Samples with their labels (int64, N)."""

    samples: Samples
    labels: Tensor
    groups: Tensor | None = None
    """The patient, or other group, of each sample (int64), where samples are not independent."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> "LabeledSet":
        """The samples at these positions with their labels."""
        groups = None if self.groups is None else self.groups[indices]
        return LabeledSet(self.samples.take(indices), self.labels[indices], groups)

    def join(self, other: "LabeledSet") -> "LabeledSet":
        """This set, then the other."""
        return LabeledSet(self.samples.join(other.samples), torch.cat([self.labels, other.labels]))

    def to(self, device: torch.device) -> "LabeledSet":
        """The samples on a device; labels are few bytes and stay."""
        return LabeledSet(self.samples.to(device), self.labels, self.groups)


def blend(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """share·first + (1 − share)·second, row by row, as floats."""
    part = share.view(-1, *[1] * (first.ndim - 1)).to(first.device)
    return part * first.float() + (1 - part) * second.float()


def joined(parts: Sequence[Samples]) -> Samples:
    """Several sets as one."""
    return parts[0].join(*parts[1:])
