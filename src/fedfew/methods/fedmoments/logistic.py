"""Logistic regression with a quadratic penalty: a smooth convex problem, solved by L-BFGS."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

TOLERANCE = 1e-10
"""A step that promises less than this is not taken."""


def logistic(
    x: Tensor, labels: Tensor, classes: int, penalty: float, steps: int = 60, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """W, b that minimise mean cross-entropy(x W + b + start) + penalty/2 (‖W‖² + ‖b‖²)."""
    wide = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    target = one_hot(labels, classes).to(x)

    def loss(weight: Tensor) -> tuple[float, Tensor]:
        log_p = (wide @ weight if start is None else start + wide @ weight).log_softmax(1)
        value = penalty / 2 * weight.square().sum() - (target * log_p).sum() / len(x)
        gradient = torch.addmm(weight, wide.T, log_p.exp_() - target, beta=penalty, alpha=1 / len(x))
        return float(value), gradient

    weight = minimise(loss, torch.zeros(wide.shape[1], classes, dtype=x.dtype), steps)
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
