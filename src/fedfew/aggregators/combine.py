"""Building blocks of aggregators: a weighted sum of vectors, and a rule that looks at one coordinate at a time."""

from collections.abc import Callable, Iterator, Sequence

import torch

from fedfew.core.types import Aggregate, Contribution

BLOCK = 1 << 20
"""Numbers that a rule works on at a time: one that sorts them needs some 20 bytes for each."""


def weighted_mean(contributions: Sequence[Contribution], weights: Sequence[float]) -> Aggregate:
    """Σ w_k ψ_k, summed in float64 one client at a time and in the order given, so that memory does not grow with m."""
    total = torch.zeros(contributions[0].vector.shape, dtype=torch.float64)
    for part, weight in zip(contributions, weights, strict=True):
        total.add_(part.vector, alpha=weight)
    return Aggregate(total.float(), {p.client: w for p, w in zip(contributions, weights, strict=True)})


def by_coordinate(
    contributions: Sequence[Contribution], rule: Callable[[torch.Tensor], torch.Tensor], entries: int = BLOCK
) -> Aggregate:
    """A rule on m×d blocks of coordinates, a block at a time, so that no m copies of the model are stacked."""
    result = torch.empty_like(contributions[0].vector)
    for span, block in blocks(contributions, entries):
        result[span] = rule(block)
    return Aggregate(result, {})


def blocks(contributions: Sequence[Contribution], entries: int = BLOCK) -> Iterator[tuple[slice, torch.Tensor]]:
    """All clients' values (m×d), block by block of coordinates; the more clients, the smaller the blocks."""
    size, width = len(contributions[0].vector), max(entries // len(contributions), 1)
    for start in range(0, size, width):
        stop = min(start + width, size)
        yield slice(start, stop), torch.stack([part.piece(start, stop) for part in contributions])


def normalised(weights: Sequence[float]) -> list[float]:
    """Weights divided by their sum; equal ones where all are 0."""
    total = sum(weights)
    return [w / total for w in weights] if total > 0 else [1 / len(weights)] * len(weights)
