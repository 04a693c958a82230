"""EM on class moments: a client's sums for several models at once, and Gaussian classes with one covariance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.core.layout import Payload

TEMPERATURES = 2.0 ** (torch.arange(-6, 13).double() / 2)
"""Temperatures at which clients report how sure the model is, so that the server can choose one."""
THINNEST = 0.1
"""Smallest share of within-class variance in the total variance of a direction; CIFAR-10 has 0.2 and more."""


SENT = ("weight", "bias", "fold_weight", "fold_bias", "previous_weight", "previous_bias", "alpha", "temperature", "mix")
"""The models that clients score their images with, in the server's state and in its messages."""


@dataclass(frozen=True)
class Shape:
    """What a client sends in a step of EM: a header of exact numbers, then Σ r y for every model.

    The first model scores all directions and learns from all labels. The others are for ``share.py``: each learns
    without a fold of the labels, and scores the first directions only.
    """

    classes: int
    width: int
    folds: int
    fold_width: int

    @property
    def widths(self) -> list[int]:
        """The directions that each model scores."""
        return [self.width, *[self.fold_width] * self.folds]

    @property
    def header(self) -> int:
        """The step answered, images that changed class; for each model Σ r and how sure it is."""
        return 2 + (1 + self.folds) * (self.classes + len(TEMPERATURES))

    @property
    def length(self) -> int:
        return self.header + self.classes * sum(self.widths)

    @property
    def sent(self) -> dict[str, tuple[int, ...]]:
        """The form of each part of the server's message."""
        models, first, second = 1 + self.folds, (self.width, self.classes), (self.fold_width, self.classes)
        forms = [first, first[1:], (self.folds, *second), (self.folds, self.classes), first, first[1:]]
        rest = [*forms, (models,), (models,), (models, self.classes)]
        return dict(zip(SENT, rest, strict=True)) | self.units | {"step": ()}

    @property
    def units(self) -> dict[str, tuple[int, ...]]:
        """The form of what every message has: with a row for each image, they could single one out."""
        return {"scale": (self.width,), "origin": (self.width,), "survey": ()}

    def read(self, sums: Tensor) -> list["ClassSums"]:
        """The sums for each model, in the coordinates y."""
        rows = sums[2 : self.header].view(1 + self.folds, -1)
        parts = sums[self.header :].split([self.classes * width for width in self.widths])
        return [
            ClassSums(row[: self.classes], part.view(self.classes, -1), row[self.classes :])
            for row, part in zip(rows, parts, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The sums of a step of EM for one model."""

    counts: Tensor
    """Σ r (C)"""
    moments: Tensor
    """Σ r y (C×p)"""
    confidence: Tensor
    """Σ over images of the largest probability, at each of ``TEMPERATURES``."""

    def scaled(self, scale: Tensor) -> "ClassSums":
        """Sums of y as sums of v = scale · y."""
        width = self.moments.shape[1]
        return ClassSums(self.counts.clamp_min(1e-9), self.moments * scale[:width], self.confidence)


@dataclass(frozen=True, eq=False)
class ClassScores:
    """A model that clients score their images with: z = v W + b, at a temperature T; α and m of their class mixes."""

    weight: Tensor
    bias: Tensor
    temperature: float
    alpha: float
    mix: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        return v[:, : len(self.weight)] @ self.weight + self.bias

    def sharpness(self, scale: Tensor) -> float:
        """How fast the difference of two scores can grow with y: at ∞, each image belongs to one class alone."""
        weight = self.weight.T * scale[: len(self.weight)].double()
        return float(torch.cdist(weight, weight).max())


def packed(models: Sequence[ClassScores], before: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Models for the server's state, with the weights before them."""
    first, *rest = models
    weight, bias = first.weight.float(), first.bias.float()
    return {
        "weight": weight,
        "bias": bias,
        "fold_weight": torch.stack([model.weight.float() for model in rest]),
        "fold_bias": torch.stack([model.bias.float() for model in rest]),
        "alpha": torch.tensor([model.alpha for model in models]),
        "temperature": torch.tensor([model.temperature for model in models]),
        "mix": torch.stack([model.mix.float() for model in models]),
        "previous_weight": torch.zeros_like(weight) if before is None else before["weight"],
        "previous_bias": torch.zeros_like(bias) if before is None else before["bias"],
    }


def sent_scores(payload: Payload) -> list[ClassScores]:
    """The models in a message to a client."""
    weights = [payload["weight"], *payload["fold_weight"]]
    biases = [payload["bias"], *payload["fold_bias"]]
    rest = zip(payload["temperature"].tolist(), payload["alpha"].tolist(), payload["mix"].double(), strict=True)
    return [ClassScores(w.double(), b.double(), *more) for w, b, more in zip(weights, biases, rest, strict=True)]


def client_sums(
    v: Tensor, y: Tensor, models: list[ClassScores], before: ClassScores, step: float, steps: int, fewest: int = 0
) -> tuple[Tensor, Tensor]:
    """What a client with images v (and y) sends, see ``Shape``; and its images' classes by the first model.

    A class with fewer than ``fewest`` images by a model is sent as nothing, see ``without_few``.
    """
    header, sums, votes = [], [], []
    for model in models:
        scores = model(v)
        r = responsibilities(scores, model.alpha, model.mix, steps)
        votes.append(r.argmax(1))
        r = without_few(r, fewest) if fewest else r
        header += [r.sum(0), sureness(scores * model.temperature)]
        sums.append((r.T @ y[:, : len(model.weight)]).flatten())
    moved = (models[0](v).argmax(1) != before(v).argmax(1)).sum()
    return torch.cat([torch.tensor([step, float(moved)], dtype=v.dtype), *header, *sums]).float(), votes[0]


def responsibilities(scores: Tensor, alpha: float, mix: Tensor, steps: int) -> Tensor:
    """r ∝ softmax(scores)·π_k with π_k = (Σ r + α m)/(n + α), the client's own class mix under Dirichlet(α m)."""
    likelihood, own = scores.softmax(1), mix
    r = likelihood
    for _ in range(steps):
        r = likelihood * own
        r = r / r.sum(1, keepdim=True).clamp_min(1e-300)
        own = (r.sum(0) + alpha * mix) / (len(r) + alpha)
    return r


def without_few(r: Tensor, fewest: int) -> Tensor:
    """Responsibilities without the classes that have fewer than ``fewest`` images.

    Σ y is known from the survey, so what is left out is known as one sum. If that sum has fewer images too, they are
    shared out among the other classes, and nothing is left out: for two of these, c and j, r_c/r_j stays as it was.
    """
    many = r.sum(0) >= fewest
    left_out = float(r[:, ~many].sum())
    if left_out >= fewest or not many.any():
        return r * many
    shared = (r + 1e-30) * many
    return shared / shared.sum(1, keepdim=True)


def temperature_for(curve: Tensor, target: float) -> float:
    """The temperature at which the mean confidence is ``target``, between those of ``TEMPERATURES``."""
    above = int((curve > target).sum())
    if above in (0, len(TEMPERATURES)):
        return float(TEMPERATURES[min(above, len(TEMPERATURES) - 1)])
    high, low = curve[above - 1], curve[above]
    share = float((high - target) / (high - low).clamp_min(1e-9))
    return float(TEMPERATURES[above - 1] * (TEMPERATURES[above] / TEMPERATURES[above - 1]) ** min(max(share, 0.0), 1.0))


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
