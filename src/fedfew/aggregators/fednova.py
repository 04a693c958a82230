"""FedNova: clients that took more steps do not bias the average.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020.

    d_k = (ω_t − ψ_k) / a_k            a_k: client k's work in steps, momentum and proximal term included
    ω   = ω_t − (Σ p_k a_k) Σ p_k d_k   p_k = n_k / Σ n over the clients that took a step
"""

from collections.abc import Sequence

import torch

from fedfew.aggregators.combine import normalised
from fedfew.core.layout import Vector
from fedfew.core.types import Aggregate, Contribution


def fednova(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate:
    """FedNova (Wang et al. 2020): changes divided by the steps they took, so that more local work adds no weight."""
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
