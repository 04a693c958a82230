"""The last word is the labels': how much the sites' moments count beside a model of the labels alone (fedmoments).

    z = s β z_sites + (1 − s) γ z_labels         a logarithmic opinion pool of two models

z_labels is what server-only training gives, to the bit; or its pool with a logistic regression that knows the classes'
names, judged in the same way. With s = 0 that model is the result.

The server's labels are divided into k folds. z_labels and z_sites of a label come from models that have not seen its
fold: for the sites, from a whole path of EM that was started without it (``path.py``). With ℓ_i(s) the loss on label i,
each s with its best β, and d_i the loss of server-only training less ℓ_i(s),

    the sites may count with s if   mean d > t_.975 · F · sd(d) / √n                  the labels show that they help
    of these shares the largest with mean_i (ℓ_i(s) − ℓ_i(s*)) ≤ SE                   s* the one of least loss

F depends on what else tells the classes apart. Three directions or more in which sites differ, at least half of those
of the classes, are no chance: F = ½. One, or names: F = 1. If nothing does, EM trains on its own labels, which alike
sites with X-rays do not bear: F = √(1 + k/(k−1)), the factor of cross-validation, whose models share labels (C. Nadeau
and Y. Bengio 2003). Sites that pass count as much as the labels allow, because they hold many more images
(one-standard-error rule, L. Breiman et al. 1984). Where sites have scanners of their own (``shift.py``), ℓ_i is a mean
over label i as it is and displaced as by each scanner-like change: the labels alone show no scanner.

What is judged are the paths without a fold, what is used is the path of all labels. If that one fits the labels, which
it has seen, worse than the others do, which have not, it has gone elsewhere, and the sites do not count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.methods.fedmoments.logistic import logistic

SHARES = (0.25, 0.5, 0.75, 1.0)
SHARPNESS = tuple(0.03 * 1.15**step for step in range(34))
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
NAMES = (0.0, 0.5, 1.0, 2.0)
UNKNOWN = -1
"""The fold of a label that is the only one of its class: without it nothing is known of the class."""


class Share(NamedTuple):
    """s, β and γ."""

    sites: float
    site_sharpness: float
    label_sharpness: float

    @property
    def parts(self) -> tuple[float, float]:
        """The factors of both scores."""
        return self.sites * self.site_sharpness, (1 - self.sites) * self.label_sharpness


NOTHING = Share(0.0, 0.0, 1.0)
Head = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class LabelModel:
    """A linear model of the labels alone, and its scores of each label without that label's fold, see `held_out`."""

    weight: Tensor
    bias: Tensor
    held_out: Tensor
    names: float = 0.0
    """t"""


def folds_of(labels: Tensor, classes: int, folds: int) -> Tensor:
    """A fold for each label, such that every fold has about as many of each class."""
    fold = torch.empty(len(labels), dtype=torch.int64)
    for c in range(classes):
        members = (labels == c).nonzero()[:, 0]
        fold[members] = (torch.arange(len(members)) + c) % folds if len(members) > 1 else UNKNOWN
    return fold


def held_out(x: Tensor, fold: Tensor, moved: Tensor | None, model: Callable[[Tensor], Head]) -> Tensor:
    """Scores V×N×C of x (N×D) by models W, b of the other folds: as it is, and displaced by each row of ``moved``."""
    moves = x[:0] if moved is None else moved.to(x)
    views, scores = torch.cat([torch.zeros_like(x[:1]), moves]), None
    for f in fold[fold != UNKNOWN].unique():
        weight, bias = model(fold != f)
        if scores is None:
            scores = torch.zeros(len(views), len(x), len(bias), dtype=x.dtype)
        scores[:, fold == f] = x[fold == f] @ weight + bias + (views @ weight)[:, None]
    return torch.zeros(len(views), len(x), 1, dtype=x.dtype) if scores is None else scores


def label_model(
    x: Tensor, labels: Tensor, classes: int, fold: Tensor, names: Tensor | None = None, moved: Tensor | None = None
) -> LabelModel:
    """Logistic regression on features of unit scale, whose weights are near t times those of the classes' ``names``
    (C×D), if there are any; cross-validation chooses t and the penalty."""
    judged, tried = fold != UNKNOWN, []
    grid = product(PENALTIES, NAMES if names is not None else NAMES[:1])
    for penalty, named in grid if bool(judged.any()) else ():

        def model(rest: Tensor, penalty: float = penalty, named: float = named) -> Head:
            return fitted(x[rest], labels[rest], classes, penalty, 25, named, names)

        scores = held_out(x, fold, moved, model)
        tried.append((float(cross_entropy(scores[0, judged], labels[judged])), penalty, named, scores))
    middle = (0.0, PENALTIES[len(PENALTIES) // 2], 0.0, torch.zeros(1, len(x), classes, dtype=x.dtype))
    _, penalty, named, scores = min(tried, key=lambda one: one[0], default=middle)
    return LabelModel(*fitted(x, labels, classes, penalty, 60, named, names), scores, named)


def fitted(
    x: Tensor, labels: Tensor, classes: int, penalty: float, steps: int, named: float = 0.0, names: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """W, b of a logistic regression in the span of the centred features, whose mean length is d^¼."""
    centre = x.mean(0)
    scale = x.shape[1] ** 0.25 / (x - centre).norm(dim=1).mean().clamp_min(1e-9)
    inner = (x - centre) * scale
    span = torch.linalg.qr(inner.T).Q if len(x) < x.shape[1] else torch.eye(x.shape[1], dtype=x.dtype)
    start = torch.zeros(x.shape[1], classes, dtype=x.dtype)
    if named and names is not None:
        start = named * names.T / (inner @ names.T).std().clamp_min(1e-9)
    weight, bias = logistic(inner @ span, labels, classes, penalty, steps, inner @ start)
    weight = (start + span @ weight) * scale
    return weight, bias - centre @ weight


def judged_share(more: Tensor, less: Tensor, plain: Tensor, labels: Tensor, factor: float = 1.0) -> Share:
    """s, β, γ of ``more`` beside ``less`` from held-out scores V×N×C, if they help more than ``plain`` alone does.

    Without any (no class has two labels) nothing can be judged, and ``more`` does not count."""
    if len(labels) < 3:
        return NOTHING
    before, (base, sharpness) = least(plain, labels)[0], least(less, labels)
    pools = []
    for s in SHARES:
        losses = [
            (Share(s, beta, sharpness), losses_of(s * beta * more + (1 - s) * sharpness * less, labels))
            for beta in SHARPNESS
        ]
        pools.append(min(losses, key=lambda pool: float(pool[1].mean())))
    t = 1.96 + 2.37 / (len(labels) - 1)  # Student's
    helpful = [(share, loss) for share, loss in pools if exceeds(before - loss, t * factor)]
    best = min((base, *(loss for _, loss in helpful)), key=lambda loss: float(loss.mean()))
    return max((share for share, loss in helpful if not exceeds(loss - best)), default=NOTHING)


def factor_of(seen: int, names: bool, classes: int, folds: int) -> float:
    """F, where the sites differ in so many directions."""
    if seen >= max(3, (classes - 1) / 2):
        return 0.5
    return 1.0 if seen or names else float((1 + folds / (folds - 1)) ** 0.5)


def exceeds(differences: Tensor, errors: float = 1.0) -> bool:
    """Whether the mean is larger than so many of its standard errors."""
    return float(differences.mean()) > errors * float(differences.std() / len(differences) ** 0.5)


def least(scores: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """The losses of scores V×N×C, made as sharp as is best for them; and how sharp."""
    return min(((losses_of(g * scores, labels), g) for g in SHARPNESS), key=lambda tried: float(tried[0].mean()))


def losses_of(scores: Tensor, labels: Tensor) -> Tensor:
    """The loss of each label, the mean over its views."""
    each = cross_entropy(scores.flatten(0, 1), labels.repeat(len(scores)), reduction="none")
    return each.view(len(scores), -1).mean(0)
