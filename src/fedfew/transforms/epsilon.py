"""Privacy accounting: ε of noisy updates for a given δ. Without torch, because runs are read without it."""

from collections.abc import Mapping
from math import inf, sqrt

from fedfew.core.extras import require


def epsilon(spent: Mapping[float, int], delta: float) -> float:
    """ε of so many updates with each noise z: Gaussian mechanisms of multiplier z/2 (data moves an update by ≤ 2C).

    They compose to one whose inverse squared multiplier is the sum of theirs. No amplification by sampling is claimed:
    this protects against the server, which knows the clients it selected.
    """
    if any(noise <= 0 for noise, count in spent.items() if count):
        return inf
    require("privacy", "privacy.noise")
    from dp_accounting import get_epsilon_gaussian

    total = sum(count * (2 / noise) ** 2 for noise, count in spent.items())
    return float(get_epsilon_gaussian(1 / sqrt(total), delta)) if total else 0.0
