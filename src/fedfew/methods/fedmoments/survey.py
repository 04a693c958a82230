"""The survey (fedmoments): second moments of the clients' features and the spread of the clients' means, once.

    client k:  Σ y and Σ y yᵀ over its images, in p directions: p(p + 3)/2 numbers
    server:    Σ_k Σ y, Σ_k Σ y yᵀ: sums over all clients;   Σ_k n_k ȳ_k ȳ_kᵀ: needs every client's own mean

The last is the only statistic of fedmoments that is not a sum over clients of what each sends. In whitened coordinates
the covariance of all images is the identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SMALLEST = 1e-5
"""Directions with less than this share of the largest variance come from rounding errors or too few images."""
WIDE = 512
"""Whitened directions at most; with fewer than these the covariance is well estimated from some thousand images."""


@dataclass(frozen=True, eq=False)
class Survey:
    """Statistics of all clients' images in p directions."""

    images: float
    squares: float
    """Σ n_k²"""
    clients: float
    total: Tensor
    """Σ v (p)"""
    second: Tensor
    """Σ v vᵀ (p×p)"""
    between: Tensor
    """Σ_k (Σ v)(Σ v)ᵀ / n_k (p×p)"""
    floor: float = 0.0
    """Variances below this are noise that was added to the sums."""

    def first(self, width: int) -> "Survey":
        """In the first directions only."""
        w = width
        return replace(self, total=self.total[:w], second=self.second[:w, :w], between=self.between[:w, :w])


@dataclass(frozen=True, eq=False)
class Tally:
    """The sums of the clients surveyed so far."""

    counts: Tensor
    """Images, Σ n_k², clients; a client that is trusted less counts as less."""
    sums: Tensor
    """Σ y, then the diagonal of Σ y yᵀ and what is above it"""
    between: Tensor

    @staticmethod
    def length(width: int) -> int:
        """How many numbers a client sends."""
        return width + width * (width + 1) // 2

    @staticmethod
    def of(extra: Mapping[str, Tensor], width: int) -> "Tally":
        """The tally in a server's state."""
        counts = extra.get("survey_counts", torch.zeros(3, dtype=torch.float64))
        sums = extra.get("survey_sums", torch.zeros(Tally.length(width), dtype=torch.float64))
        return Tally(counts, sums, extra.get("survey_between", torch.zeros(width, width, dtype=torch.float64)))

    @property
    def images(self) -> float:
        return float(self.counts[0])

    def tensors(self) -> dict[str, Tensor]:
        """The tally for a server's state."""
        return {"survey_counts": self.counts, "survey_sums": self.sums, "survey_between": self.between}

    def add(self, sums: Tensor, images: int, weight: float) -> "Tally":
        """With another client, which counts as ``weight`` of one."""
        width, own, n = len(self.between), weight * sums.double(), weight * images
        counts = self.counts + torch.tensor([n, n**2, weight], dtype=torch.float64)
        return Tally(counts, self.sums + own, self.between + torch.outer(own[:width], own[:width]) / n)

    def survey(self, scale: Tensor) -> Survey:
        """The statistics of v = scale · y."""
        width, both = len(self.between), torch.outer(scale, scale)
        images, squares, clients = self.counts.tolist()
        total, second = self.sums[:width] * scale, matrix_of(self.sums, width) * both
        return Survey(images, squares, clients, total, second, self.between * both)


def moments_of(y: Tensor) -> Tensor:
    """What a client sends: Σ y, the diagonal of Σ y yᵀ, and what is above it, whose entries are smaller."""
    second = y.T @ y
    rows, columns = torch.triu_indices(y.shape[1], y.shape[1], 1)
    return torch.cat([y.sum(0), second.diagonal(), second[rows, columns]])


def matrix_of(moments: Tensor, width: int) -> Tensor:
    """Σ y yᵀ from what a client sent."""
    upper = torch.zeros(width, width, dtype=torch.float64)
    upper[*torch.triu_indices(width, width, 1)] = moments[2 * width :].double()
    return upper + upper.T + torch.diag(moments[width : 2 * width].double())


@dataclass(frozen=True, eq=False)
class Space:
    """Whitened principal coordinates c = (v − centre) basis, in which the clients' covariance is the identity."""

    centre: Tensor
    basis: Tensor
    values: Tensor
    """Variances of the principal directions before whitening."""

    @staticmethod
    def of(survey: Survey) -> "Space":
        """The principal directions of all images, without those in which the images do not differ."""
        mean = survey.total / survey.images
        values, vectors = torch.linalg.eigh(survey.second / survey.images - torch.outer(mean, mean))
        values, vectors = values.flip(0).clamp_min(survey.floor), vectors.flip(1)
        kept = min(WIDE, max(int((values > SMALLEST * values[0].clamp_min(1e-9)).sum()), 1))
        spread = values[:kept].clamp_min(1e-12)
        return Space(mean, vectors[:, :kept] / spread.sqrt(), spread)

    def __call__(self, v: Tensor) -> Tensor:
        return (v - self.centre) @ self.basis

    def turned(self, weights: Tensor, width: int) -> Tensor:
        """Weights N×p of v as weights of the first ``width`` coordinates c: v = centre + c (basis · values)ᵀ."""
        return weights[:, : len(self.basis)] @ (self.basis * self.values)[:, :width]

    def sums(self, counts: Tensor, moments: Tensor) -> Tensor:
        """Σ r c (C×d) from Σ r (C) and Σ r v (C×p)."""
        return (moments - counts[:, None] * self.centre) @ self.basis
