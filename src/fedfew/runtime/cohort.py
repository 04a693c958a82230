"""Client sampling: F·K clients a round, available uniformly or with a bias, some of whom drop out."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedfew.core.settings import Doc, Fraction, NonNegative
from fedfew.core.streams import numpy_stream


@dataclass(frozen=True)
class Availability:
    """How likely each client is to be selected, and how often a selected client never answers."""

    kind: Annotated[
        Literal["uniform", "zipf"], Doc("uniform: all clients alike; zipf: rank r has a share ∝ 1/r^exponent")
    ] = "uniform"
    exponent: Annotated[NonNegative, Doc("zipf: how steeply availability falls with the rank")] = 1.0
    dropout: Annotated[Fraction, Doc("simulated share of selected clients that never answer")] = 0.0


def cohort_size(participation: float, clients: int) -> int:
    """m = max(round(F·K), 1)."""
    return max(round(participation * clients), 1)


def draw_cohort(seed: int, round: int, clients: int, size: int, how: Availability) -> list[int]:
    """S_t: ``size`` different clients from the round's own stream, sorted; costs the same for any number of clients."""
    rng = numpy_stream(seed, "cohort", round)
    if how.kind == "uniform":
        return sorted(int(k) for k in rng.choice(clients, size, replace=False))
    if size * 10 > clients or how.exponent > 1:  # the m largest of log p + Gumbel noise: a draw without replacement
        keys = rng.gumbel(size=clients) - how.exponent * np.log(_ranks(seed, clients))
        return sorted(int(k) for k in np.argpartition(-keys, size - 1)[:size])
    shares = _zipf(seed, clients, how.exponent)
    chosen: dict[int, None] = {}
    while len(chosen) < size:  # few of many with a long tail: skipping repeats gives the same distribution
        k = int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))
        chosen[min(k, clients - 1)] = None
    return sorted(chosen)


@lru_cache(maxsize=2)
def _zipf(seed: int, clients: int, exponent: float) -> NDArray[np.float64]:
    """Cumulative shares of the clients."""
    cumulative: NDArray[np.float64] = np.cumsum(_ranks(seed, clients) ** -exponent)
    return cumulative


@lru_cache(maxsize=2)
def _ranks(seed: int, clients: int) -> NDArray[np.float64]:
    """The rank of each client, from 1: the first is available most often."""
    return 1 + numpy_stream(seed, "availability").permutation(clients).astype(np.float64)


def drop_out(seed: int, round: int, cohort: list[int], rate: float) -> set[int]:
    """The clients of the cohort that will not answer."""
    if not rate:
        return set()
    draws = numpy_stream(seed, "dropout", round).random(len(cohort))
    return {k for k, draw in zip(cohort, draws, strict=True) if draw < rate}
