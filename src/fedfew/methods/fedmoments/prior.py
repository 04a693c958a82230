"""What is known of the class means before EM (fedmoments): from the clients' spread, the backbone, and class names.

Classes have means M_c and one covariance. Client k has its own class mix π_k ~ Dirichlet(α m) around the global mix m,
so its images' mean is Σ_c π_k,c M_c, and the spread of the clients' means beyond sampling noise is

    B = Cov_k(x̄_k) − W/n = Cov_c(M_c) / (α + 1),    Cov_c(M_c) = Σ_c m_c (M_c − M̄)(M_c − M̄)ᵀ

Client sums alone therefore span the C − 1 directions in which classes differ, before any label is used. Clients that
are alike show none above the noise. The backbone's own classifier tells of other directions, and of class names:

    M_c ~ N(t N_c, Γ),   Γ = s B + w G        G = (FᵀF)^½, F the classifier's weights in whitened coordinates
                                              N_c the mean weight of those of its classes that c is the name of

s, w and t are those of largest likelihood for the labels' class means M̂_c ~ N(t N_c, Γ + S/n_c), S = 1 − Cov_c(M_c):
if they are clearly larger without B, clients differ in more than their classes. E Cov_c(M_c) = Γ (C − 1)/C, hence
α + 1 = s (C − 1)/C. Names count in the start of EM alone: its sums are about the images themselves.
"""

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from fedfew.methods.fedmoments.em import class_sums, spread_of
from fedfew.methods.fedmoments.survey import Space, Survey

ALIKE = 1e4
"""α of clients that show no difference."""
LEAST, DENIED = 0.1, 10.0
"""Smallest α, and that of clients whose spread is not that of classes."""
MOST = 0.7
"""Largest variance between classes that the backbone can make likely, of a total of 1."""
CLEAR = 3.0
"""Labels deny that the spread of clients is that of classes, if they are likelier without it by this logarithm."""
SKEWS = tuple(1.05 * 1.15**step for step in range(25))
OTHERS = (4.0, 0.1, 0.3, 1.0, 2.0, 6.0, 9.0)
NAMES, SHRUNK = (0.0, 0.5, 0.7, 1.0, 1.4, 2.0), (1.0, 0.5, 0.25)
"""Values of s, w and t that are compared, and parts of Γ that names leave."""


@dataclass(frozen=True, eq=False)
class Known:
    """What the backbone knows, in the directions of v."""

    reads: Tensor | None = None
    """The lengths of its classifier's weights (p)"""
    names: Tensor | None = None
    """The weights of the classes' names (C×p), 0 for a name that it does not know"""

    def classes(self, space: Space, width: int) -> list[Tensor]:
        """w G for each w, G of trace 1, with no variance above ``MOST``; without a classifier G is the variance."""
        if self.reads is None:
            values, axes = space.values[:width], torch.eye(width, dtype=torch.float64)
        else:
            weights = space.turned(torch.diag(self.reads), width)
            values, axes = torch.linalg.eigh(weights.T @ weights)
            values = values.clamp_min(0).sqrt()
        values = values / values.sum().clamp_min(1e-9)
        return [axes * (w * values).clamp(1e-5, MOST) @ axes.T for w in OTHERS]

    def means(self, space: Space, classes: int, width: int) -> Tensor:
        """N (C×d), of mean square length 1; 0 without names."""
        if self.names is None:
            return torch.zeros(classes, width, dtype=torch.float64)
        means = space.turned(self.names, width)
        return means / (means.square().sum() / classes).sqrt().clamp_min(1e-9)


@dataclass(frozen=True, eq=False)
class Prior:
    """M_c ~ N(centre_c, gamma), covariance ``within``, skew α."""

    gamma: Tensor
    within: Tensor
    alpha: float
    seen: int
    """Directions in which the clients differ beyond sampling noise."""
    centre: Tensor | float = 0.0

    def shrunk(self, means: Tensor, weights: Tensor) -> Tensor:
        """Posterior means of class means C×d that come from ``weights`` images each."""
        rows = (
            self.gamma @ torch.linalg.solve(w * self.gamma + self.within, w * m)
            for w, m in zip(weights, means - self.centre, strict=True)
        )
        return self.centre + torch.stack(list(rows))

    def named(self, labeled: Tensor, labels: Tensor, names: Tensor) -> "Prior":
        """About t N and with a part of gamma, both of largest likelihood."""
        evidence = Evidence.of(labeled, labels, len(names))
        if not bool(names.any()):
            return self
        share, t = max(product(SHRUNK, NAMES), key=lambda pair: evidence(pair[0] * self.gamma, pair[1] * names))
        gamma = share * self.gamma
        return replace(self, gamma=gamma, within=rest_of(gamma, len(names)), centre=t * names)


def prior_of(
    survey: Survey, labeled: Tensor, labels: Tensor, classes: int, space: Space, known: Known, alpha: float | None
) -> Prior:
    """By the survey and the labeled images (N×d, whitened), without names.

    If ``alpha`` is given, the clients' means tell nothing of the classes."""
    width = labeled.shape[1]
    none = torch.zeros(classes, width, dtype=torch.float64)
    spread, seen = torch.zeros(width, width, dtype=torch.float64), 0
    if alpha is None:
        spread, seen = client_spread(survey, space, labeled, labels, classes)
    evidence, shares = Evidence.of(labeled, labels, classes), known.classes(space, width)

    def likely(skew: float) -> tuple[float, float, Tensor]:
        made = [skew * spread + share for share in shares]
        value, best = max((evidence(gamma, none), number) for number, gamma in enumerate(made))
        return value, skew, made[best]

    without = likely(0.0)
    best = max(map(likely, SKEWS), key=lambda one: one[0]) if seen else without
    denied = without[0] > best[0] + CLEAR
    _, skew, gamma = without if denied else best
    if alpha is None:
        alpha = DENIED if denied else max(skew * (classes - 1) / classes - 1, LEAST) if seen else ALIKE
    return Prior(gamma, rest_of(gamma, classes), alpha, 0 if denied else seen)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The likelihood of the labels' class means, about the mean of all."""

    means: Tensor
    present: Tensor
    images: float
    """Labels of a class: the harmonic mean"""

    @staticmethod
    def of(labeled: Tensor, labels: Tensor, classes: int) -> "Evidence":
        counts = torch.bincount(labels, minlength=classes).double()
        present = counts > 0
        means = class_sums(labeled, labels, classes)[present] / counts[present, None]
        return Evidence(means, present, float(1 / (1 / counts[present]).mean()))

    def __call__(self, gamma: Tensor, names: Tensor) -> float:
        """log p(M̂ | Γ, t N) up to a constant; of t N's part in the total variance nothing is taken off."""
        classes, width = names.shape
        off = self.means - names[self.present]
        off = off - off.mean(0)
        noise = torch.eye(width, dtype=torch.float64) - (classes - 1) / classes * gamma
        root = torch.linalg.cholesky(gamma + noise / self.images)
        distance = float(torch.cholesky_solve(off.T, root).T.mul(off).sum())
        return -distance / 2 - (len(off) - 1) * float(root.diagonal().log().sum())


def rest_of(gamma: Tensor, classes: int) -> Tensor:
    """S: what Cov_c(M_c) leaves of the total variance, which is 1."""
    return spread_of(torch.eye(len(gamma), dtype=torch.float64) - (classes - 1) / classes * gamma)


def client_spread(survey: Survey, space: Space, labeled: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, int]:
    """B and its rank: the spread of the clients' means in directions where it is above the noise.

    If it is more than that of the classes, without the directions in which labels show less than half of it."""
    n, clients, width = survey.images, survey.clients, labeled.shape[1]
    if clients <= 1.5:
        return torch.zeros(width, width, dtype=torch.float64), 0
    basis = space.basis[:, :width]
    centre = space.centre @ basis
    spread = basis.T @ survey.between @ basis - n * torch.outer(centre, centre)
    root, inverse = roots((n * torch.eye(width, dtype=torch.float64) - spread) / max(n - clients, 1))
    size = (n - survey.squares / n) / (clients - 1)
    spikes, vectors = torch.linalg.eigh(inverse @ (spread / (clients - 1)) @ inverse)
    above = spikes > noise_edge(clients - 1, width)
    vectors, excess = vectors[:, above], excess_of(spikes[above], width / (clients - 1)) / max(size, 1e-9)
    by_class = class_spread(labeled @ inverse @ vectors, labels, classes)
    if by_class.sum() < excess.sum():
        of_classes = by_class >= excess / 2
        vectors, excess = vectors[:, of_classes], excess[of_classes]
    vectors = root @ vectors
    return vectors * excess @ vectors.T, len(excess)


def class_spread(z: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Cov_c(M_c) of equally frequent classes in each direction of z, by labeled images whose variance in a class is 1:
    (C − 1)/C times the variance component between them."""
    counts = torch.bincount(labels, minlength=classes).double()
    means = (class_sums(z, labels, classes) / counts[:, None].clamp_min(1))[counts > 0]
    variance = (means - means.mean(0)).square().sum(0) / max(len(means) - 1, 1)
    return (variance - (1 / counts[counts > 0]).mean()).clamp_min(0) * (classes - 1) / classes


def noise_edge(samples: float, width: int) -> float:
    """The 99 % quantile of the largest eigenvalue of the covariance of white noise (I. M. Johnstone 2001)."""
    few, many = max(samples - 1, 1) ** 0.5, width**0.5
    return float((few + many) * (few + many + 2.02 * (1 / few + 1 / many) ** (1 / 3)) / samples)


def roots(covariance: Tensor, least: float = 1e-3) -> tuple[Tensor, Tensor]:
    """The square root of a covariance and its inverse, whatever noise made of its smallest eigenvalues."""
    values, axes = torch.linalg.eigh(covariance)
    deviations = values.clamp_min(least).sqrt()
    return axes * deviations @ axes.T, axes / deviations @ axes.T


def excess_of(spikes: Tensor, ratio: float) -> Tensor:
    """The clients' spread in directions whose eigenvalues are ``spikes``, in units of the sampling noise.

    Spiked covariance: sampling makes eigenvalues larger and turns directions."""
    half = spikes + 1 - ratio
    true = (half + (half**2 - 4 * spikes).clamp_min(0).sqrt()) / 2
    cosine = ((1 - ratio / (true - 1) ** 2) / (1 + ratio / (true - 1))).clamp_min(0)
    return ((true - 1) * cosine).clamp_min(1e-9)
