"""Weighted means of the clients' vectors (FedFreq, FedAvg, uniform, (FL)²'s status, FedNova) and the median.

And what rules are built of: a weighted sum of vectors, and a rule that looks at one coordinate at a time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import torch

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.settings import Doc, NonNegative
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
        yield slice(start, stop), torch.stack([part.vector[start:stop] for part in contributions])


def normalised(weights: Sequence[float]) -> list[float]:
    """Weights divided by their sum; equal ones where all are 0."""
    total = sum(weights)
    return [w / total for w in weights] if total > 0 else [1 / len(weights)] * len(weights)


def fedfreq_weights(counts: Sequence[float]) -> list[float]:
    """FedFreq, Eq. 10: w_k = (1 − p_k)/(m − 1) with p_k = q_k / Σ q over the clients that answered; m = 1 gives 1."""
    m, total = len(counts), sum(counts)
    if m and not (min(counts) >= 0 and 0 < total < math.inf):
        listed = ", ".join(f"{q:g}" for q in counts)
        raise FedfewError("E103", "counts", f"{listed} are not numbers of rounds", "Count each client's rounds from 1")
    if m == 1:
        return [1.0]
    return [(1 - q / total) / (m - 1) for q in counts]


def fedfreq(
    contributions: Sequence[Contribution],
    omega: Vector,
    sigma: Vector,
    *,
    cap: Annotated[NonNegative, Doc("no weight above cap/m, the excess goes to the others; 0: no cap")] = 0.0,
    by: Annotated[
        Literal["frequency", "frequency×examples"], Doc("weights by participation alone, or also by number of images")
    ] = "frequency",
) -> Aggregate:
    """FedFreq (the paper, Eq. 10): the more often a client has participated, the lower its weight.

    ψ = Σ w_k ψ_k,  w_k = (1 − q_k / Σ q) / (m − 1),  q_k: rounds client k has answered in, of the m that answered

    A refused answer counts too: otherwise a client refused nine times would get more weight than honest ones.
    """
    weights = fedfreq_weights([part.participation for part in contributions])
    if by == "frequency×examples":
        weights = normalised([w * part.examples for w, part in zip(weights, contributions, strict=True)])
    return weighted_mean(contributions, capped(weights, cap))


def capped(weights: Sequence[float], cap: float) -> list[float]:
    """Weights of sum 1 with none above cap/m; what is cut off goes to the uncapped in proportion to their weights."""
    m = len(weights)
    if not cap or cap / m >= 1:
        return list(weights)
    limit, weights = max(cap, 1.0) / m, list(weights)
    for _ in range(m):
        over = [i for i, w in enumerate(weights) if w > limit + 1e-12]
        if not over:
            break
        fixed = {i for i, w in enumerate(weights) if w >= limit - 1e-12}
        free = [i for i in range(m) if i not in fixed]
        rest = 1 - limit * len(fixed)
        base = sum(weights[i] for i in free)
        for i in fixed:
            weights[i] = limit
        for i in free:
            weights[i] = weights[i] / base * rest if base > 0 else rest / len(free)
    return weights


def fedavg(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate:
    """FedAvg (McMahan et al. 2017): ψ = Σ (n_k / Σ n) ψ_k over the clients that answered."""
    return weighted_mean(contributions, normalised([part.examples for part in contributions]))


def uniform(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate:
    """Every client that answered has the same weight: ψ = Σ ψ_k / m."""
    return weighted_mean(contributions, [1 / len(contributions)] * len(contributions))


def status(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate:
    """Learning status ((FL)², Lee et al. 2024): w_k ∝ 1 − τ_k; confident clients get less weight."""
    return weighted_mean(contributions, normalised([1 - part.status for part in contributions]))


def fednova(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate:
    """FedNova (J. Wang et al., NeurIPS 2020): clients that took more steps do not bias the average.

    d_k = (ω_t − ψ_k) / a_k            a_k: client k's work in steps, momentum and proximal term included
    ω   = ω_t − (Σ p_k a_k) Σ p_k d_k   p_k = n_k / Σ n over the clients that took a step
    """
    parts = [part for part in contributions if part.steps > 0]
    if not parts:
        return Aggregate(omega.clone(), {})
    shares = normalised([part.examples for part in parts])
    effective = sum(p * part.steps for p, part in zip(shares, parts, strict=True))
    weights = [effective * p / part.steps for p, part in zip(shares, parts, strict=True)]
    total = torch.zeros(omega.shape, dtype=torch.float64)
    for part, weight in zip(parts, weights, strict=True):
        total.add_(part.vector.double() - omega, alpha=weight)
    return Aggregate((omega + total).float(), {part.client: w for part, w in zip(parts, weights, strict=True)})


def median(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate:
    """Coordinate-wise median (Yin et al. 2018), for even m the mean of the middle two; no client has a weight.

    ψ[j] = median of ψ_1[j], …, ψ_m[j]
    """
    return by_coordinate(contributions, _median)


def _median(block: torch.Tensor) -> torch.Tensor:
    ordered, m = block.sort(0).values, len(block)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2
