"""The directions in which clients send sums: of all features, those that the backbone's own classifier reads.

    u = x V,   V the first right singular vectors of the classifier's centred weights (1,000 classes of ImageNet, say)
    v = u − origin,  y = v / scale:   mean and deviation of the server's labeled images, so that all sums have similar
        size and fit into eight bits; ‖y‖ ≤ REACH √p, so that no image adds more to a sum than is known beforehand

Without a classifier V is a random orthonormal basis, the same at every site; if there are no more features than
directions, it is the identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedfew.core.network import Network
from fedfew.core.samples import Samples
from fedfew.models.backbones.pretrained import LENGTH

REACH = 3.0
"""Bound on the root mean square of an image's y; that of the server's labels is 1."""
LEAST = 0.1
"""Smallest deviation of a direction, as a share of the mean one: few labels may have none there."""


def basis_of(network: Network, directions: int) -> Tensor:
    """V (D×p, float64) for the features of this network's head; ``directions`` 0: all of them."""
    width = network.layout.shapes[0][1]
    if not directions or directions >= width:
        return torch.eye(width, dtype=torch.float64)
    classifier: Tensor | None = getattr(network.module, "classifier", None)
    return _random(width, directions) if classifier is None else _principal(classifier, directions)


def reads_of(network: Network, basis: Tensor) -> Tensor | None:
    """How long the classifier's centred weights are in each direction of V (p); None without a classifier."""
    classifier: Tensor | None = getattr(network.module, "classifier", None)
    if classifier is None:
        return None
    lengths: Tensor = ((classifier.double() - classifier.double().mean(0)) @ basis).norm(dim=0)
    return lengths


@lru_cache(maxsize=4)
def _principal(classifier: Tensor, directions: int) -> Tensor:
    """The first right singular vectors of the centred weights, each with its largest entry positive."""
    weights = classifier.double() - classifier.double().mean(0)
    vectors = torch.linalg.eigh(weights.T @ weights).eigenvectors.flip(1)[:, :directions]
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    principal: Tensor = vectors * largest.sign()
    return principal


@lru_cache(maxsize=4)
def _random(width: int, directions: int) -> Tensor:
    draws = torch.randn(width, directions, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    orthonormal: Tensor = torch.linalg.qr(draws).Q
    return orthonormal


def features(samples: Samples) -> Tensor:
    """The vectors of samples, in float64 and at most ``LENGTH`` long."""
    x = samples.vectors()
    shortened: Tensor = x * (LENGTH / x.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    return shortened


@dataclass(frozen=True, eq=False)
class Frame:
    """The coordinates y in which sums are sent; v = scale · y is what scores are computed from."""

    origin: Tensor
    scale: Tensor

    @staticmethod
    def of(labeled: Tensor, even: bool = False) -> "Frame":
        """By the server's labeled images u (N×p); ``even``: one scale for all directions."""
        spread = labeled.std(0) if len(labeled) > 1 else torch.ones_like(labeled[0])
        if even:
            spread = torch.full_like(spread, float(spread.square().mean().sqrt()))
        return Frame(labeled.mean(0).float(), spread.clamp_min(LEAST * float(spread.mean()) + 1e-6).float())

    @staticmethod
    def sent(tensors: Mapping[str, Tensor]) -> "Frame":
        """As the server sent or stored it."""
        return Frame(tensors["origin"].double(), tensors["scale"].double())

    def __call__(self, x: Tensor, basis: Tensor) -> Tensor:
        """y of features x (N×D)."""
        return self.bounded(x @ basis)

    def bounded(self, u: Tensor) -> Tensor:
        """y of u (N×p), with no image further off than features of ``LENGTH`` can be."""
        u = u * (LENGTH / u.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        y = (u - self.origin) / self.scale
        longest = REACH * len(self.scale) ** 0.5
        bounded: Tensor = y * (longest / y.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        return bounded
