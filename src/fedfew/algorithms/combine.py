"""What aggregators are made of: a weighted sum of vectors, and a rule that looks at one coordinate at a time."""

from collections.abc import Callable, Sequence

import torch

from fedfew.core.types import Aggregate, Contribution


def weighted_mean(contributions: Sequence[Contribution], weights: Sequence[float]) -> Aggregate:
    """Σ w_k ψ_k, summed in float64 one client at a time and in the order given, so that memory does not grow with m."""
    total = torch.zeros(contributions[0].vector.shape, dtype=torch.float64)
    for part, weight in zip(contributions, weights, strict=True):
        total.add_(part.vector, alpha=weight)
    return Aggregate(total.float(), {p.client: w for p, w in zip(contributions, weights, strict=True)})


def by_coordinate(
    contributions: Sequence[Contribution], rule: Callable[[torch.Tensor], torch.Tensor], chunk: int = 1 << 16
) -> Aggregate:
    """A rule on m×d blocks of coordinates, a block at a time, so that no m copies of the model are stacked."""
    result = torch.empty_like(contributions[0].vector)
    for start in range(0, len(result), chunk):
        block = torch.stack([part.vector[start : start + chunk] for part in contributions])
        result[start : start + chunk] = rule(block)
    return Aggregate(result, {})


def normalised(weights: Sequence[float]) -> list[float]:
    """Weights divided by their sum; equal ones where all are 0."""
    total = sum(weights)
    return [w / total for w in weights] if total > 0 else [1 / len(weights)] * len(weights)
