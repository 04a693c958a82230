"""Vectors N×V×d with V views of each sample: features that a frozen backbone computed once, or the user's own.

A weak view is one of the V, drawn for each sample, as N×1×d, with noise where the user's own have no views; a strong
view also has a tenth of its features set to 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import STANDARD, OwnView, Samples, StrongView

LENGTH = 4.0
"""Length of every feature vector. Raw ones differ from backbone to backbone (45 for EfficientNet-Lite0, where SGD at
lr 0.02 loses 8 points with 40 labels of CIFAR-10); at 4, step sizes from 0.02 to 0.1 work with momentum 0.9."""
DROPPED = 0.1
"""Share of the features that a strong view drops (dropout); the others are scaled up to keep the mean."""


@dataclass(frozen=True, eq=False)
class Vectors(Samples):
    """Vectors of floats, N×V×d."""

    noise: float = 0.0
    """Deviation of the noise in a weak view, relative to the root mean square of the features."""
    encoder: Mapping[str, Any] | None = None
    """How they were made from the rows of a table (``data/rows/encoder.py``)."""
    moved: Tensor | None = None
    """The mean displacement of these samples' vectors under each of S scanner-like changes (S×d), where it is known."""
    names: Tensor | None = None
    """What a backbone knows of the classes' names, as weights of the vectors (C×d), where it knows them."""

    @staticmethod
    def described(data: Tensor, about: Mapping[str, Any]) -> "Vectors":
        """Data as the vectors that ``about`` describes."""
        return Vectors(data, float(about.get("noise", 0.0)), about.get("encoder"))

    def inputs(self, device: torch.device) -> Tensor:
        """The first view, N×d."""
        return self.data[:, 0].to(device).float()

    def weak(self, rng: torch.Generator, shift: int = 2) -> Self:
        """One of the views of each sample."""
        drawn = self._view(torch.randint(0, self.data.shape[1], (len(self), 1), generator=rng))
        return drawn.noisy(self.noise, rng) if self.noise else drawn

    def strong(self, rng: torch.Generator, how: StrongView | OwnView = STANDARD) -> Self:
        """A weak view with dropout; or the user's own function, applied to a weak view."""
        drawn = self.weak(rng)
        if isinstance(how, OwnView):
            return self.like(how(drawn.data, rng))
        kept = torch.rand(drawn.data.shape, generator=rng) >= DROPPED
        return self.like(drawn.data * kept.to(drawn.data.device) / (1 - DROPPED))

    def views(self, count: int, rng: torch.Generator) -> list[Self]:
        """Views of each sample, all different as long as there are enough."""
        rounds = -(-count // self.data.shape[1])
        orders = [torch.rand(self.data.shape[:2], generator=rng).argsort(1) for _ in range(rounds)]
        drawn = [self._view(number[:, None]) for number in torch.cat(orders, 1)[:, :count].unbind(1)]
        return [view.noisy(self.noise, rng) for view in drawn] if self.noise else drawn

    def _view(self, numbers: Tensor) -> Self:
        """The view of each sample that ``numbers`` (N×1) names."""
        index = numbers.to(self.data.device)[:, :, None].expand(-1, -1, self.data.shape[2])
        return self.like(self.data.gather(1, index))

    def noisy(self, deviation: float, rng: torch.Generator) -> Self:
        """Noise whose deviation is relative to the root mean square of the features."""
        draws = torch.randn(self.data.shape, generator=rng).to(self.data.device)
        return self.like(self.data.float() + deviation * self.data.float().square().mean().sqrt() * draws)

    def random(self, rng: torch.Generator) -> Self:
        """A random vector as long as the first sample's."""
        draws = torch.randn(1, 1, self.data.shape[2], generator=rng)
        return self.like(draws * float(self.data[0, 0].float().norm() / draws.norm()))

    def vectors(self) -> Tensor:
        """The mean over the views; on the host, because not every accelerator has float64."""
        return self.data.cpu().double().mean(1)

    def about(self) -> dict[str, Any]:
        more = {"noise": self.noise, "encoder": dict(self.encoder)} if self.encoder else {}
        return {"kind": "vectors", "shape": [self.data.shape[2]]} | more

    def fault(self) -> str:
        if not self.data.is_floating_point() or self.data.dim() != 3:
            return f"vectors are {self.data.dtype} of {self.data.dim()} dimensions, not floats N×V×d"
        return ""

    def standardizer(self, *others: Self) -> Callable[[Self], Self]:
        why = "vectors are scaled by dataset.scale"
        raise FedfewError("E113", "dataset.normalize", why, 'Set dataset.normalize = "unit"')
