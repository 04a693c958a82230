"""A path of EM at the server (fedmoments): from labels and the survey to scores, and from clients' sums to the next.

    start      M⁰_c = class means of the labels, shrunk by the prior of the sites' spread (``prior.py``);  W = S⁻¹M⁰
    step       M_c = (Σ r c + labeled sums + κ n_c M⁰_c)/(…), shrunk;   S = total − between;   W = S⁻¹M
    model      the same moments in all directions, not shrunk

All in whitened coordinates c. One path learns from all labels; a path for each fold learns without that fold, so its
model has seen the held-out labels nowhere: neither in its start nor in what clients computed with its scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedfew.methods.fedmoments.em import (
    ClassScores,
    ClassSums,
    class_sums,
    linear,
    spread_of,
    sureness,
    temperature_for,
)
from fedfew.methods.fedmoments.prior import Known, Prior, prior_of
from fedfew.methods.fedmoments.survey import Space, Survey

RIDGE, WIDE_RIDGE = 0.02, 0.1
"""Variance added to every direction in EM and in the model, in units of the whitened features."""


@dataclass(frozen=True, eq=False)
class Rule:
    """The settings of the M-step."""

    width: int
    confidence: float
    label_weight: float
    evidence: float
    alpha: float | None = None
    """α, if sites have scanners of their own (``shift.py``) or say nothing of their spread (``bounded.py``)."""
    sure: bool = True
    """Whether clients say how sure the model is; if not, the labeled images do."""
    known: Known = field(default_factory=Known)
    """What the backbone knows of the classes."""


@dataclass(frozen=True, eq=False)
class Path:
    """What stays the same in all steps of a path."""

    rule: Rule
    space: Space
    prior: Prior
    labeled: Tensor
    """The labeled images in whitened coordinates (N×d)."""
    labels: Tensor
    anchor: Tensor
    """M⁰ (C×width)"""

    @staticmethod
    def of(rule: Rule, survey: Survey, v: Tensor, labels: Tensor, classes: int) -> "Path":
        """From the survey and labeled images v (N×p), in the first of its directions."""
        survey = survey.first(v.shape[1])
        space = Space.of(survey)
        labeled = space(v)
        narrow = labeled[:, : rule.width]
        prior = prior_of(survey, narrow, labels, classes, space, rule.known, rule.alpha)
        counts = torch.bincount(labels, minlength=classes).double()
        means = class_sums(narrow, labels, classes) / counts[:, None].clamp_min(1)
        anchor = prior.named(narrow, labels, rule.known.means(space, classes, narrow.shape[1])).shrunk(means, counts)
        return Path(rule, space, prior, labeled, labels, anchor)

    @property
    def counts(self) -> Tensor:
        """How many labels each class has."""
        return torch.bincount(self.labels, minlength=len(self.anchor)).double()

    def start(self, mix: Tensor) -> ClassScores:
        """The first scores: directions of the shrunk class means, none of which wins by its length."""
        head = torch.linalg.solve(self.prior.within, self.anchor.T)
        norm = (self.anchor.T * head).sum(0).clamp_min(1e-6).sqrt()
        head = head / norm * norm.mean()
        return self._scores(head, torch.zeros_like(mix), None, mix)

    def step(self, sums: ClassSums, mix: Tensor) -> ClassScores:
        """The scores after an M-step on the clients' sums, given for v."""
        d, labels = len(self.anchor[0]), self.counts
        mine, images = self.labeled[:, :d], sums.counts.sum()
        both, pull = sums.counts + labels, self.rule.label_weight * labels[:, None]
        total = self.space.sums(sums.counts, sums.moments)[:, :d] + class_sums(mine, self.labels, len(labels))
        means = (total + pull * self.anchor) / (both[:, None] + pull).clamp_min(1e-3)
        means = self.prior.shrunk(means, torch.full_like(labels, self.rule.evidence))
        eye = torch.eye(d, dtype=torch.float64)
        second = images * eye + mine.T @ mine
        within = (second - (both[:, None] * means).T @ means) / both.sum() + RIDGE * eye
        head, bias = linear(means, spread_of(within))
        return self._scores(head, bias, sums.confidence / images if self.rule.sure else None, mix)

    def model(self, sums: ClassSums) -> tuple[Tensor, Tensor]:
        """W, b for v: Gaussian classes in all directions."""
        eye = torch.eye(self.labeled.shape[1], dtype=torch.float64)
        both, images = sums.counts + self.counts, sums.counts.sum()
        total = self.space.sums(sums.counts, sums.moments) + class_sums(self.labeled, self.labels, len(both))
        means = total / both[:, None].clamp_min(1e-3)
        second = images * eye + self.labeled.T @ self.labeled
        within = (second - (both[:, None] * means).T @ means) / both.sum()
        return self._raw(*linear(means, spread_of(within + WIDE_RIDGE * eye)))

    def _raw(self, head: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of c as scores of v."""
        weight = self.space.basis[:, : len(head)] @ head
        return weight, bias - self.space.centre @ weight

    def _scores(self, head: Tensor, bias: Tensor, curve: Tensor | None, mix: Tensor) -> ClassScores:
        target = self.rule.confidence
        if curve is None:  # the scores were made from the labeled images, so they are surer of these than of others
            curve = sureness(self.labeled[:, : len(head)] @ head + bias) / len(self.labels)
            target = min(0.9, target + 0.1)
        temperature = temperature_for(curve, target)
        return ClassScores(*self._raw(head / temperature, bias / temperature), temperature, self.prior.alpha, mix)


def paths_of(
    rule: Rule, survey: Survey, v: Tensor, labels: Tensor, classes: int, fold: Tensor, folds: Sequence[int], width: int
) -> list[Path]:
    """The path of all labels, and in the first ``width`` directions one without each fold."""
    rest = [Path.of(rule, survey, v[fold != f, :width], labels[fold != f], classes) for f in folds]
    return [Path.of(rule, survey, v, labels, classes), *rest]
