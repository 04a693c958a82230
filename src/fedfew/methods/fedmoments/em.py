"""EM on class moments: a client's sums, and at the server Gaussian classes with one covariance."""

from dataclasses import dataclass

import torch
from torch import Tensor

TEMPERATURES = 2.0 ** (torch.arange(-6, 13).double() / 2)
"""Temperatures at which clients report how sure the model is, so that the server can choose one."""
THINNEST = 0.1
"""Smallest share of within-class variance in the total variance of a direction; CIFAR-10 has 0.2 and more."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The clients' sums of a step of EM, scaled to all images surveyed."""

    counts: Tensor
    """Σ r (C)"""
    moments: Tensor
    """Σ r x (C×D)"""
    moved: float
    """The share of images that changed class since the step before."""
    confidence: Tensor
    """The mean of the largest probability, at each of ``TEMPERATURES``."""

    @staticmethod
    def length(classes: int, width: int) -> int:
        """How many numbers a client sends."""
        return classes * (width + 1) + 1 + len(TEMPERATURES)

    @staticmethod
    def of(sums: Tensor, classes: int, images: float) -> "ClassSums":
        """From what the clients sent, added up."""
        end = len(sums) - 1 - len(TEMPERATURES)
        counts = sums[:classes].clamp_min(1e-9)
        covered = counts.sum()
        moments = sums[classes:end].view(classes, -1) * images / covered
        return ClassSums(counts * images / covered, moments, float(sums[end] / covered), sums[end + 1 :] / covered)


def client_sums(x: Tensor, scores: Tensor, before: Tensor, r: Tensor, temperature: float) -> Tensor:
    """What a client sends: Σ r, Σ r x, how many images changed class, and how sure the model is."""
    moved = (scores.argmax(1) != before.argmax(1)).double().sum()
    return torch.cat([r.sum(0), (r.T @ x).flatten(), moved[None], sureness(scores * temperature)]).float()


def responsibilities(scores: Tensor, alpha: float, mix: Tensor, steps: int) -> Tensor:
    """r ∝ softmax(scores)·π_k with π_k = (Σ r + α m)/(n + α), the client's own class mix under Dirichlet(α m)."""
    likelihood, own = scores.softmax(1), mix
    r = likelihood
    for _ in range(steps):
        r = likelihood * own
        r = r / r.sum(1, keepdim=True).clamp_min(1e-300)
        own = (r.sum(0) + alpha * mix) / (len(r) + alpha)
    return r


def temperature_for(curve: Tensor, target: float) -> float:
    """The temperature at which the mean confidence is ``target``, between those of ``TEMPERATURES``."""
    above = int((curve > target).sum())
    if above in (0, len(TEMPERATURES)):
        return float(TEMPERATURES[min(above, len(TEMPERATURES) - 1)])
    high, low = curve[above - 1], curve[above]
    share = float((high - target) / (high - low).clamp_min(1e-9))
    return float(TEMPERATURES[above - 1] * (TEMPERATURES[above] / TEMPERATURES[above - 1]) ** share)


def sureness(scores: Tensor) -> Tensor:
    """Σ over images of the largest probability, at each of ``TEMPERATURES``."""
    return torch.stack([(scores / t).softmax(1).amax(1).sum() for t in TEMPERATURES.to(scores)])


def class_sums(x: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Σ x over the images of each class, C×d."""
    return torch.zeros(classes, x.shape[1], dtype=x.dtype).index_add_(0, labels, x)


def spread_of(within: Tensor) -> Tensor:
    """A within-class covariance in whitened space, with a variance of at least ``THINNEST`` in every direction.

    It is the total variance minus the variance between classes. If the clients that answer have other class mixes than
    those surveyed, this difference could be negative in some direction."""
    values, axes = torch.linalg.eigh(within)
    return within if values[0] >= THINNEST else axes @ torch.diag(values.clamp_min(THINNEST)) @ axes.T


def linear(means: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of Gaussian classes with one covariance: z = c W + b with W = S⁻¹Mᵀ (d×C), b = −½ M S⁻¹ Mᵀ (C)."""
    weight = torch.linalg.solve(within, means.T)
    return weight, -0.5 * (means.T * weight).sum(0)
