"""Sites with a scanner of their own (fedmoments): a shift b_k of all images of a site, beside its class mix.

    v̄_k = b_k + Σ_c π_kc M_c + sampling noise,      b_k ~ N(0, t·T + e·I),   π_k ~ Dirichlet(α m)
    v̄_k ~ N(0, A),   A = t·T + e·I + B/(α + 1) + S/n        B = Cov_c(M_c) by the labels, with what they leave open

T = Σ_s m_s m_sᵀ / S, m_s the mean displacement of the server's own labeled images under the s-th of some scanner-like
changes (``data/samples/scans.py``): the directions in which scanners move features. t, e and α are those of largest
likelihood, given the spread of the sites' means. If t = e = 0 is (nearly) as likely, there is no shift, and nothing
changes. Otherwise a site estimates its own b_k = t·T A⁻¹ v̄_k, whose rank is the number of changes, and counts v − b_k
instead of v. It tells nobody; but a server that is told v̄_k, as in the survey, can compute the same.

The origin of v is the mean of the server's labels, whose sampling error S/n_0 all sites share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from fedfew.methods.fedmoments.em import class_sums
from fedfew.methods.fedmoments.survey import Survey

WIDTH = 128
"""Principal directions, within sites, in which shifts are looked for."""
SCANNERS = (0.0, 0.1, 0.2, 0.4, 1.0, 2.0, 4.0, 8.0)
OTHER = (0.0, 0.002, 0.005, 0.01, 0.03, 0.1, 0.3)
SKEWS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 0.8)
"""Values of t, e and 1 / (α + 1) that are compared."""
SHIFT = ("shift_into", "shift_out", "shift_alpha")
"""Its tensors, in the server's state and in its messages."""
CLEAR = 5.0
"""Gain in log-likelihood from which there is a shift; ten strong scanners on CIFAR-10 give more than 300."""


@dataclass(frozen=True, eq=False)
class Shift:
    """b = (v̄ into) outᵀ, and how skewed the sites are beside their shifts."""

    into: Tensor
    out: Tensor
    alpha: float
    gain: float
    """In log-likelihood, over no shift."""

    def tensors(self) -> dict[str, Tensor]:
        """For the server's state and its messages."""
        return dict(zip(SHIFT, (self.into.float(), self.out.float(), torch.tensor(self.alpha)), strict=True))

    @staticmethod
    def sent(tensors: Mapping[str, Tensor]) -> "Shift | None":
        """As the server sent or stored it; None if there is no shift."""
        if SHIFT[0] not in tensors:
            return None
        into, out, alpha = (tensors[name].double() for name in SHIFT)
        return Shift(into, out, float(alpha), 0.0)

    def of_site(self, v: Tensor) -> Tensor:
        """b of a site with images v (N×p)."""
        return v.mean(0) @ self.into @ self.out.T

    def aligned(self, survey: Survey) -> Survey:
        """The survey as if every site had sent v − b: it is linear in a site's mean."""
        keep = torch.eye(len(survey.total), dtype=torch.float64) - self.into @ self.out.T
        between = keep.T @ survey.between @ keep
        second = survey.second - survey.between + between
        return replace(survey, total=survey.total @ keep, second=second, between=between)


def shift_of(survey: Survey, labeled: Tensor, labels: Tensor, classes: int, moved: Tensor) -> Shift | None:
    """The sites' shifts by survey, labeled images v (N×p) and their displacements ``moved`` (S×p); None without any."""
    model = Model.of(survey, labeled, labels, classes, moved)
    likeliest = max((model.likelihood(*point), point) for point in product(SCANNERS, OTHER, SKEWS))
    gain = likeliest[0] - max(model.likelihood(0.0, 0.0, skew) for skew in SKEWS)
    scanners, other, skew = likeliest[1]
    if gain < CLEAR or not scanners:
        return None
    out = model.moved.T * (scanners / len(moved)) ** 0.5
    into = torch.linalg.solve(model.covariance(scanners, other, skew) + model.within / model.size, out)
    return Shift(model.basis @ into, model.back @ out, 1 / max(skew, 1e-4) - 1, gain)


@dataclass(frozen=True, eq=False)
class Model:
    """Covariances in the principal directions within sites, whitened: c = v basis."""

    basis: Tensor
    back: Tensor
    """v = c backᵀ, in these directions"""
    moved: Tensor
    within: Tensor
    """S, within classes"""
    between: Tensor
    """B, with the posterior covariance of the labels' class means"""
    centre: Tensor
    """The mean of the sites' means"""
    spread: Tensor
    """Σ_k (c̄_k − centre)(c̄_k − centre)ᵀ, larger sites counting more"""
    sites: float
    size: float
    labels: int

    @staticmethod
    def of(survey: Survey, labeled: Tensor, labels: Tensor, classes: int, moved: Tensor) -> "Model":
        n, sites = survey.images, survey.clients
        pooled = (survey.second - survey.between) / max(n - sites, 1)
        values, vectors = torch.linalg.eigh(pooled)
        values, vectors = values.flip(0)[:WIDTH].clamp_min(1e-12), vectors.flip(1)[:, :WIDTH]
        basis, back = vectors / values.sqrt(), vectors * values.sqrt()
        eye = torch.eye(len(values), dtype=torch.float64)
        prior = torch.diag(0.5 * values / values[0]) + 1e-5 * eye
        within = eye - prior
        counts = torch.bincount(labels, minlength=classes).double().clamp_min(1e-9)
        raw = class_sums(labeled @ basis, labels, classes) / counts[:, None]
        means = torch.stack(
            [prior @ torch.linalg.solve(k * prior + within, k * m) for k, m in zip(counts, raw, strict=True)]
        )
        means = means - means.mean(0)
        left = torch.linalg.inv(torch.linalg.inv(prior) + counts.mean() * torch.linalg.inv(within))
        centre = survey.total @ basis / n
        spread = basis.T @ survey.between @ basis / n - torch.outer(centre, centre)
        return Model(
            basis, back, moved @ basis, within, means.T @ means / classes + left, centre, sites * spread, sites,
            n / sites, len(labels),
        )  # fmt: skip

    def covariance(self, scanners: float, other: float, skew: float) -> Tensor:
        """Of the sites' true means: t T + e I + B / (α + 1)."""
        eye = torch.eye(len(self.within), dtype=torch.float64)
        return scanners * self.moved.T @ self.moved / len(self.moved) + other * eye + skew * self.between

    def likelihood(self, scanners: float, other: float, skew: float) -> float:
        """The logarithm, up to a constant: of the sites' differences, and of their mean."""
        own = self.covariance(scanners, other, skew) + self.within / self.size
        mean = own / self.sites + self.within / self.labels
        outer = torch.outer(self.centre, self.centre)
        return _gaussian(own, self.spread, self.sites - 1) + _gaussian(mean, outer, 1)


def _gaussian(covariance: Tensor, squares: Tensor, count: float) -> float:
    """log N of ``count`` vectors whose squares sum to a matrix, up to a constant."""
    root = torch.linalg.cholesky(covariance)
    return -float(torch.cholesky_solve(squares, root).trace()) / 2 - count * float(root.diagonal().log().sum())
