"""The correction by the server's labels of scores that came from sums: cross-validated logistic regression."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

TOLERANCE = 1e-10
"""A step that promises less than this is not taken."""
STRENGTHS, PENALTIES = (0.0, 0.25, 0.5, 1.0), (0.1, 0.3, 1.0, 3.0, 30.0)


def corrected(
    x: Tensor, labels: Tensor, unseen: Tensor, scores: Tensor, classes: int, folds: int = 5
) -> tuple[float, Tensor, Tensor]:
    """How far the labels correct ``scores`` that came from the clients: strength s, and W, b added to s · scores.

    Logistic regression on labeled features x with s · scores as offset. Cross-validation on these labels chooses s and
    the penalty; for that, ``unseen`` are the scores of a model that has not seen the labels. s = 0: the labels alone.
    """
    span = torch.linalg.qr(x.T).Q if len(x) < x.shape[1] else torch.eye(x.shape[1], dtype=x.dtype)
    inner, folds = x @ span, folds if len(x) < 500 else 3
    fold = torch.empty(len(labels), dtype=torch.long)
    for c in range(classes):
        members = (labels == c).nonzero()[:, 0]
        fold[members] = (torch.arange(len(members)) + c) % folds
    best = (float("inf"), 0.0, PENALTIES[0])
    for strength in STRENGTHS:
        for penalty in PENALTIES:
            risk = 0.0
            for held in range(folds):
                train, test = fold != held, fold == held
                if not test.any() or not train.any():
                    continue
                weight, bias = logistic(inner[train], labels[train], strength * unseen[train], penalty, 25)
                predicted = strength * unseen[test] + inner[test] @ weight + bias
                risk += float(cross_entropy(predicted, labels[test], reduction="sum"))
            best = min(best, (risk, strength, penalty))
    _, strength, penalty = best
    weight, bias = logistic(inner, labels, strength * scores, penalty)
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
        height, new = loss(point + step)
        while height > value + 1e-4 * size * slope and size > 1e-6:
            size /= 2
            height, new = loss(point + size * step)
        turn = size * float((step * (new - gradient)).sum())
        if turn > 1e-14:
            pairs = [*pairs[-9:], (size * step, new - gradient, 1 / turn)]
        point, value, gradient = point + size * step, height, new
    return point
