"""Gaussian classes in feature space, estimated from a few labels and from sums over clients of different class mix.

Classes have means M_c and one covariance. Client k has its own class mix π_k ~ Dirichlet(α m) around the global mix m,
so its images' mean is Σ_c π_k,c M_c, and the spread of the clients' means beyond sampling noise is

    B = Cov_k(x̄_k) − W/n = Cov_c(M_c) / (α + 1)

Client sums alone therefore span the C − 1 directions in which classes differ, before any label is used; the labels
say how large the differences are, and so what α is. Clients that are alike show no direction above the noise (the
Marchenko–Pastur edge; I. M. Johnstone 2001), and what is left is a weak prior along the principal directions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

TEMPERATURES = 2.0 ** (torch.arange(-6, 13).double() / 2)
"""Temperatures at which clients report how sure the model is, so that the server can choose one."""
EDGE = 1.05
"""A direction counts if its eigenvalue is this many times the largest that sampling noise gives."""
SMALLEST = 1e-5
"""Directions with less than this share of the largest variance come from rounding errors or too few images."""
THINNEST = 0.1
"""Smallest share of within-class variance in the total variance of a direction; CIFAR-10 has 0.2 and more."""
EXPLAINED = 1.1
"""If class spread is less than this many times client spread, clients differ in more than their class mix."""
ALIKE = 1e4
"""α of clients that show no difference."""


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
class Space:
    """Whitened principal coordinates c = (x − centre) basis, in which the clients' covariance is the identity."""

    centre: Tensor
    basis: Tensor
    values: Tensor
    """Variances of the principal directions before whitening."""

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


def prior_of(
    survey: Survey, space: Space, width: int, labeled: Tensor, labels: Tensor, classes: int, weak: float
) -> Prior:
    """Empirical Bayes: the spread of the clients' means, scaled by the spread of the labeled images' class means.

    ``weak`` is the between-class share assumed along the first principal direction where the clients show none.
    """
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
    unseen = torch.diag(weak * space.values[:width] / space.values[0])
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


TOLERANCE = 1e-10
"""A step that promises less than this is not taken."""
STRENGTHS, PENALTIES = (0.0, 0.25, 0.5, 1.0), (0.1, 0.3, 1.0, 3.0, 30.0)


def corrected(
    x: Tensor, labels: Tensor, alone: Tensor, whole: Tensor, classes: int, folds: int = 5
) -> tuple[float, Tensor, Tensor]:
    """How far the labels correct scores that came from the clients: strength s, and W, b added to s · scores.

    Logistic regression on labeled features x with s times the given scores as offset; s and the penalty are chosen by
    cross-validation on these labels. ``alone`` are the scores of a model that has not seen the labels, for a
    fair comparison; ``whole`` are those to correct. s = 0 uses the labels alone.
    """
    span = torch.linalg.qr(x.T).Q if len(x) < x.shape[1] else torch.eye(x.shape[1], dtype=x.dtype)
    inner, folds = x @ span, folds if len(x) < 500 else 3
    fold = torch.empty(len(labels), dtype=torch.long)
    for c in range(classes):
        place = (labels == c).nonzero()[:, 0]
        fold[place] = (torch.arange(len(place)) + c) % folds
    best = (float("inf"), 0.0, PENALTIES[0])
    for strength in STRENGTHS:
        for penalty in PENALTIES:
            risk = 0.0
            for held in range(folds):
                train, test = fold != held, fold == held
                if not test.any() or not train.any():
                    continue
                weight, bias = logistic(inner[train], labels[train], strength * alone[train], penalty, 25)
                scores = strength * alone[test] + inner[test] @ weight + bias
                risk += float(cross_entropy(scores, labels[test], reduction="sum"))
            best = min(best, (risk, strength, penalty))
    _, strength, penalty = best
    weight, bias = logistic(inner, labels, strength * whole, penalty)
    return strength, span @ weight, bias


def logistic(x: Tensor, labels: Tensor, offset: Tensor, penalty: float, steps: int = 60) -> tuple[Tensor, Tensor]:
    """W, b that minimise mean cross-entropy(offset + x W + b) + penalty/2 (‖W‖² + ‖b‖²)."""
    wide = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    target = one_hot(labels, offset.shape[1]).to(x)

    def loss(weight: Tensor) -> tuple[float, Tensor]:
        log_p = torch.addmm(offset, wide, weight).log_softmax(1)
        value = penalty / 2 * weight.square().sum() - (target * log_p).sum() / len(x)
        gradient = torch.addmm(weight, wide.T, log_p.exp_() - target, beta=penalty, alpha=1 / len(x))
        return float(value), gradient

    weight = minimise(loss, torch.zeros(wide.shape[1], offset.shape[1], dtype=x.dtype), steps)
    return weight[:-1], weight[-1]


def minimise(loss: Callable[[Tensor], tuple[float, Tensor]], start: Tensor, steps: int) -> Tensor:
    """L-BFGS with backtracking (J. Nocedal 1980) for a smooth convex loss, which gives its value and gradient.

    torch's takes two to three times as long on such small problems and imports its compiler, which takes seconds;
    SciPy's keeps its threads spinning."""
    point, (value, gradient) = start, loss(start)
    pairs: list[tuple[Tensor, Tensor, float]] = []
    for _ in range(steps):
        step, slopes = -gradient, []
        for moved, turned, rho in reversed(pairs):
            slopes.append(rho * float((moved * step).sum()))
            step = step - slopes[-1] * turned
        if pairs:
            _, turned, rho = pairs[-1]
            step = step / (rho * float(turned.square().sum()))
        for (moved, turned, rho), slope in zip(pairs, reversed(slopes), strict=True):
            step = step + (slope - rho * float((turned * step).sum())) * moved
        slope, size = float((gradient * step).sum()), 1.0
        if slope > -TOLERANCE:
            break
        there, new = loss(point + step)
        while there > value + 1e-4 * size * slope and size > 1e-6:
            size /= 2
            there, new = loss(point + size * step)
        turn = size * float((step * (new - gradient)).sum())
        if turn > 1e-14:
            pairs = [*pairs[-9:], (size * step, new - gradient, 1 / turn)]
        point, value, gradient = point + size * step, there, new
    return point
