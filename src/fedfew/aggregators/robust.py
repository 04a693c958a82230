"""Robust aggregators: rules that tolerate a few faulty or hostile clients.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning. ICML 2018 (trimmed mean).
P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: Machine Learning with Adversaries. NeurIPS 2017 (Krum).
X. Cao, M. Fang, J. Liu, N. Z. Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping. NDSS 2021.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedfew.aggregators.weighted import blocks, by_coordinate, weighted_mean
from fedfew.core.layout import Vector
from fedfew.core.settings import Count, Doc, Natural
from fedfew.core.types import Aggregate, Contribution


def trimmed_mean(
    contributions: Sequence[Contribution],
    omega: Vector,
    sigma: Vector,
    *,
    trim: Annotated[float, Ge(0), Lt(0.5), Doc("share of the clients left out at each end of every coordinate")] = 0.2,
) -> Aggregate:
    """Trimmed mean (Yin et al. 2018): at each coordinate the ⌊trim·m⌋ smallest and largest values are left out.

    ψ[j] = mean of ψ_(c+1)[j], …, ψ_(m−c)[j], sorted by size,  c = ⌊trim·m⌋
    """
    cut = int(trim * len(contributions) + 1e-9)  # a product such as 0.29·100 = 28.999… is meant to be 29

    def mean(block: Tensor) -> Tensor:
        ordered = block.sort(0).values
        return ordered[cut : len(block) - cut].double().mean(0).float()

    return by_coordinate(contributions, mean)


def krum(
    contributions: Sequence[Contribution],
    omega: Vector,
    sigma: Vector,
    *,
    faulty: Annotated[Natural, Doc("f: clients that may be hostile; needs at least 2f + 3 a round")] = 1,
    select: Annotated[Count, Doc("number of models averaged: 1 is Krum, more is multi-Krum")] = 1,
) -> Aggregate:
    """Krum (Blanchard et al. 2017): the model nearest to its m − f − 2 nearest others, or the mean of the best few.

    s_k = Σ ‖ψ_k − ψ_i‖² over its m − f − 2 nearest ψ_i,  ψ = ψ_k of the smallest s_k

    Where fewer clients answer than 2f + 3, f is lowered to what their number allows.
    """
    m = len(contributions)
    f = min(faulty, max((m - 3) // 2, 0))
    ordered = squared_distances(contributions).sort(1).values  # the first is the distance to itself
    scores = ordered[:, 1 : 1 + max(m - f - 2, 0)].sum(1)
    best = sorted(scores.argsort(stable=True)[: min(select, m - f)].tolist())
    return weighted_mean([contributions[i] for i in best], [1 / len(best)] * len(best))


def squared_distances(contributions: Sequence[Contribution]) -> Tensor:
    """‖ψ_i − ψ_j‖² as m×m in float64, from differences: a Gram matrix would lose the digits that differ."""
    m = len(contributions)
    table = torch.zeros(m, m, dtype=torch.float64)
    for _, block in blocks(contributions):
        for i in range(1, m):
            table[i, :i] += (block[:i] - block[i]).double().square().sum(1)
    return table + table.T


def fltrust(
    contributions: Sequence[Contribution],
    omega: Vector,
    sigma: Vector,
    *,
    stretch: Annotated[bool, Doc("also lengthen changes shorter than the server's, as published")] = True,
) -> Aggregate:
    """FLTrust (Cao et al. 2021): clients are weighted by their cosine with the server's step and scaled to its length.

    t_k = relu cos(ψ_k − ω, σ − ω);   ω + Σ t_k (‖σ − ω‖ / ‖ψ_k − ω‖)(ψ_k − ω) / Σ t_k;   σ if no client is trusted.

    Published for clients with labels, whose changes are about as long as the server's. Clients without labels often
    move far less, and in another direction; scaled up, that is mostly noise: use ``stretch = false`` then.
    """
    way = (sigma - omega).double()
    length = way.norm()
    total = torch.zeros_like(way)
    trust = {}
    for part in contributions:
        change = (part.vector - omega).double()
        norm = change.norm()
        if not norm or not length:
            trust[part.client] = 0.0
            continue
        trust[part.client] = max(float(change @ way / (norm * length)), 0.0)
        factor = float(length / norm)
        total.add_(change, alpha=trust[part.client] * (factor if stretch else min(factor, 1.0)))
    total_trust = sum(trust.values())
    if not total_trust:
        return Aggregate(sigma.clone(), trust)
    return Aggregate((omega + total / total_trust).float(), {client: t / total_trust for client, t in trust.items()})
