"""Gaussian classes in feature space, estimated from a few labels and from sums over clients of different class mix.

Classes have means M_c and one covariance. Client k has its own class mix π_k ~ Dirichlet(α m) around the global mix m,
so its images' mean is Σ_c π_k,c M_c, and the spread of the clients' means beyond sampling noise is

    B = Cov_k(x̄_k) − W/n = Cov_c(M_c) / (α + 1)

Client sums alone therefore span the C − 1 directions in which classes differ, before any label is used; the labels
say how large the differences are, and so what α is. Clients that are alike show no direction above the noise (the
Marchenko–Pastur edge; I. M. Johnstone 2001), and what is left is a weak prior along the principal directions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.methods.fedmoments.em import class_sums, spread_of

EDGE = 1.05
"""A direction counts if its eigenvalue is this many times the largest that sampling noise gives."""
SMALLEST = 1e-5
"""Directions with less than this share of the largest variance come from rounding errors or too few images."""
EXPLAINED = 1.1
"""If class spread is less than this many times client spread, clients differ in more than their class mix."""
ALIKE = 1e4
"""α of clients that show no difference."""
WEAK = 0.5
"""Between-class share assumed along the first principal direction, where the clients show none."""


@dataclass(frozen=True, eq=False)
class Survey:
    """Statistics of the clients' features: sums over all images, and the spread of the clients' means."""

    images: float
    squares: float
    """Σ n_k²"""
    clients: float
    total: Tensor
    """Σ x (D)"""
    second: Tensor
    """Σ x xᵀ (D×D)"""
    between: Tensor
    """Σ_k (Σ x)(Σ x)ᵀ / n_k (D×D)"""


@dataclass(frozen=True, eq=False)
class Tally:
    """The sums of the clients surveyed so far; they are in the server's state until the survey is complete."""

    counts: Tensor
    """Images, Σ n_k², clients; a client that is trusted less counts as less."""
    sums: Tensor
    """Σ x, then the upper triangle of Σ x xᵀ"""
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

    def tensors(self) -> dict[str, Tensor]:
        """The tally for a server's state."""
        return {"survey_counts": self.counts, "survey_sums": self.sums, "survey_between": self.between}

    def add(self, sums: Tensor, images: int, weight: float) -> "Tally":
        """With another client, which counts as ``weight`` of one."""
        width, own, n = len(self.between), weight * sums.double(), weight * images
        counts = self.counts + torch.tensor([n, n**2, weight], dtype=torch.float64)
        return Tally(counts, self.sums + own, self.between + torch.outer(own[:width], own[:width]) / n)

    def survey(self) -> Survey:
        """The statistics, once the tally is complete."""
        width = len(self.between)
        second = torch.zeros(width, width, dtype=torch.float64)
        second[*torch.triu_indices(width, width)] = self.sums[width:]
        images, squares, clients = self.counts.tolist()
        return Survey(images, squares, clients, self.sums[:width], second + second.triu(1).T, self.between)


def moments_of(x: Tensor) -> Tensor:
    """What a client sends in the survey: Σ x and the upper triangle of Σ x xᵀ."""
    rows, columns = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.cat([x.sum(0).float(), (x.float().T @ x.float())[rows, columns]])


@dataclass(frozen=True, eq=False)
class Space:
    """Whitened principal coordinates c = (x − centre) basis, in which the clients' covariance is the identity."""

    centre: Tensor
    basis: Tensor
    values: Tensor
    """Variances of the principal directions before whitening."""

    @staticmethod
    def kept(extra: Mapping[str, Tensor]) -> "Space":
        """The space in a server's state."""
        return Space(extra["centre"], extra["basis"], extra["values"])

    @staticmethod
    def of(survey: Survey, most: int) -> "Space":
        """The first ``most`` principal directions of all images, without those in which the images do not differ."""
        mean = survey.total / survey.images
        values, vectors = torch.linalg.eigh(survey.second / survey.images - torch.outer(mean, mean))
        values, vectors = values.flip(0), vectors.flip(1)
        kept = min(most, max(int((values > SMALLEST * values[0]).sum()), 1))
        spread = values[:kept].clamp_min(1e-12)
        return Space(mean, vectors[:, :kept] / spread.sqrt(), spread)

    def __call__(self, x: Tensor, width: int | None = None) -> Tensor:
        """Coordinates of features N×D, the first ``width`` of them."""
        return (x - self.centre) @ self.basis[:, :width]

    def sums(self, counts: Tensor, moments: Tensor) -> Tensor:
        """Σ r c (C×width) from Σ r (C) and Σ r x (C×D)."""
        return (moments - counts[:, None] * self.centre) @ self.basis


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior of the class means before EM: M_c ~ N(0, gamma), covariance ``within``, skew α."""

    gamma: Tensor
    within: Tensor
    alpha: float
    seen: int
    """Directions in which the clients differ beyond sampling noise."""

    def shrunk(self, means: Tensor, weights: Tensor) -> Tensor:
        """Posterior means of class means C×d that come from ``weights`` images each."""
        rows = (
            self.gamma @ torch.linalg.solve(w * self.gamma + self.within, w * m)
            for w, m in zip(weights, means, strict=True)
        )
        return torch.stack(list(rows))


def prior_of(survey: Survey, space: Space, width: int, labeled: Tensor, labels: Tensor, classes: int) -> Prior:
    """Empirical Bayes: the spread of the clients' means, scaled by the spread of the labeled images' class means."""
    n, clients = survey.images, survey.clients
    eye = torch.eye(width, dtype=torch.float64)
    basis = space.basis[:, :width]
    centre = space.centre @ basis
    spread = basis.T @ survey.between @ basis - n * torch.outer(centre, centre)
    msb = spread / max(clients - 1, 1)
    msw = (n * eye - spread) / max(n - clients, 1) + 1e-3 * eye
    size = (n - survey.squares / n) / max(clients - 1, 1)
    root = torch.linalg.cholesky(msw)
    inverse = torch.linalg.inv(root)
    spikes, vectors = torch.linalg.eigh(inverse @ msb @ inverse.T)
    spikes, vectors = spikes.flip(0), vectors.flip(1)
    ratio = width / max(clients - 1, 1)
    seen = int((spikes > EDGE * (1 + ratio**0.5) ** 2).sum()) if clients > 1 else 0
    unseen = torch.diag(WEAK * space.values[:width] / space.values[0])
    gamma, alpha = unseen, ALIKE
    if seen:
        spikes, vectors = spikes[:seen], vectors[:, :seen]
        half = spikes + 1 - ratio  # spiked covariance: sampling makes eigenvalues larger and turns directions
        true = (half + (half**2 - 4 * spikes).clamp_min(0).sqrt()) / 2
        cosine = ((1 - ratio / (true - 1) ** 2) / (1 + ratio / (true - 1))).clamp_min(0)
        excess = ((true - 1) * cosine / max(size, 1e-9)).clamp_min(1e-9)
        directions = inverse.T @ vectors
        by_class = label_spread(labeled[:, :width] @ directions, labels, classes)
        if by_class.sum() < EXPLAINED * excess.sum():  # clients differ in more than their classes: cameras, say
            of_classes = by_class >= excess / 2
            seen, vectors, directions = int(of_classes.sum()), vectors[:, of_classes], directions[:, of_classes]
            excess, by_class = excess[of_classes], by_class[of_classes]
    if seen:
        share = float(by_class.sum() / excess.sum())
        alpha = max(share - 1, 0.1)
        plane = torch.linalg.qr(directions).Q
        rest = eye - plane @ plane.T
        strong = root @ vectors @ torch.diag(excess * max(share, 1.05)) @ vectors.T @ root.T
        gamma = strong + max(0, classes - 1 - seen) / max(classes - 1, 1) * rest @ unseen @ rest
    gamma = gamma + 1e-5 * eye
    return Prior(gamma, spread_of(eye - gamma), alpha, seen)


def label_spread(z: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Between-class variance of labeled images in each direction, without its sampling noise."""
    counts = torch.bincount(labels, minlength=classes).double()
    present, n = counts > 0, float(counts.sum())
    means = class_sums(z, labels, classes) / counts[:, None].clamp_min(1)
    groups = max(int(present.sum()) - 1, 1)
    msb = (counts[:, None] * (means - z.mean(0)) ** 2).sum(0) / groups
    msw = ((z - means[labels]) ** 2).sum(0) / max(n - groups - 1, 1)
    if n <= groups + 1:
        msw = torch.ones_like(msw)  # one label a class: in these units, the within-variance of the clients
    return ((msb - msw) / ((n - float((counts**2).sum()) / n) / groups)).clamp_min(1e-4)
