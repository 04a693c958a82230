"""The last word is the labels': how much the sites' moments count beside a model of the labels alone (fedmoments).

    z = s β z_sites + (1 − s) γ z_labels         a logarithmic opinion pool of two models; s = 0: the labels alone

The server's labels are divided into folds. z_labels and z_sites of a label come from models that have not seen its
fold: for the sites, from a whole path of EM that was started without it (``path.py``). With ℓ_i(s) the loss on label i,
each s with its best β,

    the sites may count with s if   mean_i (ℓ_i(s) − ℓ_i(0)) < − (0.9 + 0.4 s) SE    the labels show that they help
    of these shares the largest with mean_i (ℓ_i(s) − ℓ_i(s*)) ≤ SE                   s* the one of least loss

SE is the standard error of each mean. The more the sites are to count, the surer the labels must be that they help: at
s = 1 a normal estimate passes by chance once in ten times. Those that pass count as much as the labels allow, because
they hold many more images (one-standard-error rule, L. Breiman et al. 1984).

What is judged are the paths without a fold, what is used is the path of all labels. If that one fits the labels, which
it has seen, worse than the others do, which have not, it has gone elsewhere, and the sites do not count.
"""

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.methods.fedmoments.logistic import logistic

SHARES, SHARPNESS = (0.25, 0.5, 0.75, 1.0), (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
NAMES = (0.0, 0.5, 1.0, 2.0)
UNKNOWN = -1
"""The fold of a label that is the only one of its class: without it nothing is known of the class."""


class Share(NamedTuple):
    """s, β and γ."""

    sites: float
    site_sharpness: float
    label_sharpness: float


@dataclass(frozen=True, eq=False)
class LabelModel:
    """A linear model of the labels alone, and its scores of each label without that label's fold."""

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


def label_model(x: Tensor, labels: Tensor, classes: int, fold: Tensor, names: Tensor | None = None) -> LabelModel:
    """Logistic regression on features of unit scale, whose weights are near t times those of the classes' ``names``
    (C×D), if there are any; cross-validation chooses t and the penalty."""
    held_out = torch.zeros(len(x), classes, dtype=x.dtype)
    best = (float("inf"), PENALTIES[len(PENALTIES) // 2], 0.0, held_out)
    judged = fold != UNKNOWN
    grid = product(PENALTIES, NAMES if names is not None else NAMES[:1]) if bool(judged.any()) else ()
    for penalty, named in grid:
        scores = held_out.clone()
        for f in fold[judged].unique():
            weight, bias = fitted(x[fold != f], labels[fold != f], classes, penalty, 25, named, names)
            scores[fold == f] = x[fold == f] @ weight + bias
        loss = float(cross_entropy(scores[judged], labels[judged]))
        best = min(best, (loss, penalty, named, scores), key=lambda b: b[0])
    return LabelModel(*fitted(x, labels, classes, best[1], 60, best[2], names), best[3], best[2])


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


def judged_share(sites: Tensor, alone: Tensor, seen: Tensor, labels: Tensor) -> Share:
    """s, β, γ from held-out scores N×C of both models, and from those of the sites' model that has seen the labels.

    Without any (no class has two labels) nothing can be judged, and both models count the same."""
    if len(labels) < 2:
        return Share(0.5, 0.5, 1.0)
    sharpness = min(SHARPNESS, key=lambda g: float(cross_entropy(g * alone, labels)))
    own = sharpness * alone
    alone_loss = cross_entropy(own, labels, reduction="none")
    pools = []
    for s in SHARES:
        losses = [
            (Share(s, beta, sharpness), cross_entropy(s * beta * sites + (1 - s) * own, labels, reduction="none"))
            for beta in SHARPNESS
        ]
        pools.append(min(losses, key=lambda pool: float(pool[1].mean())))
    helpful = [(share, loss) for share, loss in pools if exceeds(alone_loss - loss, 0.9 + 0.4 * share.sites)]
    held_out, fitted_to = (_least(scores, labels) for scores in (sites, seen))
    if not helpful or exceeds(fitted_to - held_out):
        return Share(0.0, 0.0, sharpness)
    least = min((loss for _, loss in helpful), key=lambda loss: float(loss.mean()))
    return max(share for share, loss in helpful if not exceeds(loss - least))


def exceeds(differences: Tensor, errors: float = 1.0) -> bool:
    """Whether the mean is larger than so many of its standard errors."""
    return float(differences.mean()) > errors * float(differences.std() / len(differences) ** 0.5)


def _least(scores: Tensor, labels: Tensor) -> Tensor:
    """The losses of scores, made as sharp as is best for them."""
    losses = [cross_entropy(beta * scores, labels, reduction="none") for beta in SHARPNESS]
    return min(losses, key=lambda loss: float(loss.mean()))
