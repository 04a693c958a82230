"""Answers in which one image counts for little, whatever the others are (fedmoments with privacy.unit = "image").

With noise z on an answer, a site's data with and without one image give answers that are told apart no better than two
normal numbers of deviation z whose means differ by 1. ‖y‖ ≤ R for every image, because longer ones are shortened.

    survey    g(x) = (a, b y/R, c yyᵀ/R²),  a² + b² + c² = 1;   sent: Σ g + N(0, z²)
              ‖yyᵀ‖ = ‖y‖² ≤ R²  (entries above the diagonal times √2), so ‖g‖ ≤ 1
    EM        h = Σ softmax(z(x)) + N(0, z²/s),  ‖softmax‖ ≤ 1;   π_k from h alone, see ``own_mix``
              g(x) = √(1 − s) · (w_m (a r_m, b r_m yᵀ/R_m))_m over the models m,  a² + b² = Σ w_m² = 1;   Σ g + N(0, z²)
              ‖r‖ ≤ 1, so ‖g‖ ≤ √(1 − s)

Without noise on h every r would depend on all images of the site, through π_k, and the sums would have no such bound.
Given π_k, r depends on its own image and on what the server sent. So an answer in EM is two Gaussian mechanisms, the
second chosen by the outcome of the first; their inverse squared deviations in units of their bounds add up to
s/z² + (1 − s)/z² = 1/z² (J. Dong, A. Roth, W. J. Su: Gaussian differential privacy. 2022, theorem 3). The number of
images is not sent: it is a sum like the others. Nor is anything else of a site: how many images changed class, how sure
it is (the temperature then follows from the labels), or which classes have few images.

The noise of many numbers costs more than the numbers are worth, so fewer directions, folds and steps are the default,
and the prior of the class means comes from the backbone's classifier, not from the spread between sites.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from fedfew.core.types import ClientUpdate
from fedfew.methods.fedmoments.em import ClassScores, Shape
from fedfew.methods.fedmoments.survey import Survey, Tally, moments_of
from fedfew.transforms.privacy import blurred

REACH = 0.8
"""R/√p: the root mean square of y is 1 for the server's labels."""
COUNT, MEAN, SECOND = 0.28, 0.48, 0.83
"""a, b, c of the survey"""
CLASS_COUNT, CLASS_MEAN = 0.4, 0.91
"""a, b of a step of EM"""
MIX = 0.2
"""s, the part of an answer's noise budget that goes into the site's class mix"""
FIRST = 0.6
"""w² of the first model; the others share the rest."""
SKEW = 1.0
"""α of the class mixes"""
TIMES = 5.0
"""A site counts as at most this many times the median one."""


def shortened(y: Tensor) -> Tensor:
    """y with ‖y‖ ≤ R."""
    shorter: Tensor = y * (REACH * y.shape[1] ** 0.5 / y.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    return shorter


def survey_sums(y: Tensor) -> Tensor:
    """Σ g of the survey."""
    width, radius = y.shape[1], REACH * y.shape[1] ** 0.5
    sums = moments_of(shortened(y))
    sums[width:] *= SECOND / radius**2
    sums[2 * width :] *= 2**0.5
    return torch.cat([torch.tensor([COUNT * len(y)]), MEAN / radius * sums[:width], sums[width:]])


def histogram(v: Tensor, model: ClassScores) -> Tensor:
    """Σ softmax(z) (C), to which one image adds at most 1."""
    return model(v).softmax(1).sum(0)


def own_mix(counts: Tensor, model: ClassScores, noise: float) -> Tensor:
    """π_k from a noisy histogram.

    With β of the probability on an image's own class and the rest on all alike, h/n = β π + (1 − β)/C. β is the mean
    confidence that the model's temperature was chosen for; the noise counts as so many more images of the common mix.
    """
    classes, n = len(counts), counts.sum().clamp_min(1.0)
    share = ((counts / n - (1 - SURE) / classes) / SURE).clamp_min(0)
    prior = model.alpha + classes * noise
    return (n * share / share.sum().clamp_min(1e-9) + prior * model.mix) / (n + prior)


SURE = 0.7
"""β"""


def class_sums(v: Tensor, y: Tensor, models: Sequence[ClassScores], mix: Tensor) -> Tensor:
    """Σ g of a step of EM, given the site's class mix."""
    parts = []
    for model, weight in zip(models, model_weights(len(models)), strict=True):
        own = shortened(y[:, : len(model.weight)])
        r = model(v).softmax(1) * mix
        r = r / r.sum(1, keepdim=True).clamp_min(1e-300)
        radius = REACH * own.shape[1] ** 0.5
        parts += [weight * CLASS_COUNT * r.sum(0), (weight * CLASS_MEAN / radius * r.T @ own).flatten()]
    sums: Tensor = torch.cat(parts) * (1 - MIX) ** 0.5
    return sums


def model_weights(models: int) -> list[float]:
    """w_m"""
    return [FIRST**0.5, *[((1 - FIRST) / (models - 1)) ** 0.5] * (models - 1)]


def step_answer(v: Tensor, y: Tensor, models: Sequence[ClassScores], noise: float) -> Tensor:
    """What a site makes of its images in a step of EM, before the noise on it."""
    deviation = noise / MIX**0.5
    counts = blurred(histogram(v, models[0]), deviation)
    return class_sums(v, y, models, own_mix(counts, models[0], deviation))


@dataclass(frozen=True)
class Opened:
    """How the server reads such answers: as the sums that it would get without noise."""

    shape: Shape
    noise: float

    @property
    def survey_length(self) -> int:
        return 1 + Tally.length(self.shape.width)

    @property
    def length(self) -> int:
        """Of an answer in EM."""
        return self.shape.classes * sum(1 + width for width in self.shape.widths)

    def __call__(self, updates: Sequence[ClientUpdate], step: int | None) -> list[ClientUpdate]:
        """The updates with sums of y and their estimated number of images; ``step``: of EM, None in the survey."""
        wanted = self.survey_length if step is None else self.length
        read = [(update, update.reply["sums"].double()) for update in updates]
        opened = [self._survey(u, sums) if step is None else self._step(u, sums, step)
                  for u, sums in read if len(sums) == wanted and self._possible(sums)]  # fmt: skip
        most = TIMES * median([update.examples for update in opened]) if opened else 0.0
        return [update for update in opened if update.examples <= most]

    def _possible(self, sums: Tensor) -> bool:
        """Whether the answer is no longer than its images and the noise can make it, but for one case in 10⁸."""
        classes = self.shape.classes
        first = sums[:classes].sum() / (_scale() * CLASS_COUNT) if len(sums) == self.length else sums[0] / COUNT
        slack = 6 * self.noise * (classes**0.5 / (_scale() * CLASS_COUNT) + 1)
        return bool(float(sums.norm()) <= max(float(first), 0.0) + slack + self.noise * len(sums) ** 0.5)

    def _survey(self, update: ClientUpdate, sums: Tensor) -> ClientUpdate:
        width, radius = self.shape.width, REACH * self.shape.width**0.5
        moments = sums[1:].clone()
        moments[:width] *= radius / MEAN
        moments[width:] *= radius**2 / SECOND
        moments[2 * width :] /= 2**0.5
        return replace(update, reply={"sums": moments}, examples=max(1, round(float(sums[0]) / COUNT)))

    def _step(self, update: ClientUpdate, sums: Tensor, step: int) -> ClientUpdate:
        shape, header, moments = self.shape, [torch.tensor([step, 0.0])], []
        sure = torch.zeros((shape.header - 2) // (1 + shape.folds) - shape.classes)
        parts = sums.split([shape.classes * (1 + width) for width in shape.widths])
        for part, width, weight in zip(parts, shape.widths, model_weights(len(parts)), strict=True):
            scale, radius = weight * (1 - MIX) ** 0.5, REACH * width**0.5
            header += [part[: shape.classes] / (scale * CLASS_COUNT), sure]
            moments.append(part[shape.classes :] * radius / (scale * CLASS_MEAN))
        images = max(1, round(float(header[1].sum())))
        return replace(update, reply={"sums": torch.cat([*header, *moments])}, examples=images)

    def floor(self, survey: Survey, scale: float) -> float:
        """Largest eigenvalue of the noise in the covariance of v, scale · y (E. Wigner's semicircle)."""
        width = self.shape.width
        entry = self.noise * (REACH**2 * width) / (SECOND * 2**0.5) * max(survey.clients, 1.0) ** 0.5
        return float(2 * width**0.5 * entry * scale**2 / max(survey.images, 1.0))


def _scale() -> float:
    """Of the first model's sums."""
    return float((FIRST * (1 - MIX)) ** 0.5)
