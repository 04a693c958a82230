"""What the spread of the clients' means tells of the classes (fedmoments), before EM.

Classes have means M_c and one covariance. Client k has its own class mix π_k ~ Dirichlet(α m) around the global mix m,
so its images' mean is Σ_c π_k,c M_c, and the spread of the clients' means beyond sampling noise is

    B = Cov_k(x̄_k) − W/n = Cov_c(M_c) / (α + 1),    Cov_c(M_c) = Σ_c m_c (M_c − M̄)(M_c − M̄)ᵀ

Client sums alone therefore span the C − 1 directions in which classes differ, before any label is used; the labels
say how large the differences are, and so what α is. Clients that are alike show no direction above the noise (the
Marchenko–Pastur edge; I. M. Johnstone 2001), and what is left is a weak prior along the principal directions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.methods.fedmoments.em import class_sums, spread_of
from fedfew.methods.fedmoments.survey import Space, Survey

EDGE = 1.05
"""A direction counts if its eigenvalue is this many times the largest that sampling noise gives."""
EXPLAINED = 1.1
"""If class spread is less than this many times client spread, clients differ in more than their class mix."""
ALIKE = 1e4
"""α of clients that show no difference."""
CLASSIFIER = 4.0
"""Between-class variance over all directions, where the backbone's classifier says which."""
WEAK = 0.5
"""Between-class share assumed along the first principal direction, where the clients show none."""


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


def shifted_prior(space: Space, width: int, alpha: float, reads: Tensor | None) -> Prior:
    """Where sites have scanners of their own, their means say nothing of the classes, and α is known otherwise.

    Classes then differ in the directions in which the backbone's own classes do: gamma ~ (FᵀF)^½ with the classifier's
    weights F in whitened coordinates. ``reads`` (p) are the lengths of these weights in the directions of v."""
    eye = torch.eye(width, dtype=torch.float64)
    gamma = torch.diag(WEAK * space.values[:width] / space.values[0])
    if reads is not None:
        weights = reads[: len(space.basis), None] * space.basis[:, :width] * space.values[:width]
        root = roots(weights.T @ weights, 0.0)[0]
        gamma = CLASSIFIER * root / root.trace().clamp_min(1e-9)
    gamma = gamma + 1e-5 * eye
    return Prior(gamma, spread_of(eye - gamma), alpha, 0)


def prior_of(survey: Survey, space: Space, labeled: Tensor, labels: Tensor, classes: int) -> Prior:
    """Empirical Bayes in the first principal directions: the spread of the clients' means, as directions, and of the
    labeled images' class means (``labeled`` N×d, whitened), as scale."""
    n, clients, width = survey.images, survey.clients, labeled.shape[1]
    eye = torch.eye(width, dtype=torch.float64)
    basis = space.basis[:, :width]
    centre = space.centre @ basis
    spread = basis.T @ survey.between @ basis - n * torch.outer(centre, centre)
    msb = spread / max(clients - 1, 1)
    root, inverse = roots((n * eye - spread) / max(n - clients, 1))
    size = (n - survey.squares / n) / max(clients - 1, 1)
    spikes, vectors = torch.linalg.eigh(inverse @ msb @ inverse)
    spikes, vectors = spikes.flip(0), vectors.flip(1)
    ratio = width / max(clients - 1, 1)
    seen = int((spikes > EDGE * (1 + ratio**0.5) ** 2).sum()) if clients > 1 else 0
    unseen = torch.diag(WEAK * space.values[:width] / space.values[0])
    gamma, alpha = unseen, ALIKE
    if seen:
        spikes, vectors = spikes[:seen], vectors[:, :seen]
        excess = excess_of(spikes, ratio) / max(size, 1e-9)
        directions = inverse @ vectors
        by_class = label_spread(labeled @ directions, labels, classes)
        if by_class.sum() < EXPLAINED * excess.sum():  # clients differ in more than their classes: cameras, say
            of_classes = by_class >= excess / 2
            seen, vectors, directions = int(of_classes.sum()), vectors[:, of_classes], directions[:, of_classes]
            excess, by_class = excess[of_classes], by_class[of_classes]
    if seen:
        ratio = float(by_class.sum() / excess.sum())
        alpha = max(ratio - 1, 0.1)
        plane = torch.linalg.qr(directions).Q
        rest = eye - plane @ plane.T
        strong = root @ vectors @ torch.diag(excess * max(ratio, 1.05)) @ vectors.T @ root
        gamma = strong + max(0, classes - 1 - seen) / max(classes - 1, 1) * rest @ unseen @ rest
    gamma = gamma + 1e-5 * eye
    return Prior(gamma, spread_of(eye - gamma), alpha, seen)


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


def label_spread(z: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Cov_c(M_c) of equally frequent classes in each direction: (C − 1)/C times the variance component between them,
    which the labeled images show beyond their sampling noise."""
    counts = torch.bincount(labels, minlength=classes).double()
    present, n = counts > 0, float(counts.sum())
    means = class_sums(z, labels, classes) / counts[:, None].clamp_min(1)
    groups = max(int(present.sum()) - 1, 1)
    msb = (counts[:, None] * (means - z.mean(0)) ** 2).sum(0) / groups
    msw = ((z - means[labels]) ** 2).sum(0) / max(n - groups - 1, 1)
    if n <= groups + 1:
        msw = torch.ones_like(msw)  # one label a class: in these units, the within-variance of the clients
    component = (msb - msw) / ((n - float((counts**2).sum()) / n) / groups)
    return (component * (classes - 1) / classes).clamp_min(1e-4)
