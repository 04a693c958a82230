"""Aggregators: how the clients' vectors become one. Each is a function, and one line in the registry below."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.settings import Registry

if TYPE_CHECKING:
    from fedfew.core.types import Aggregate

AGGREGATORS: "Registry[Callable[..., Aggregate]]" = Registry(
    "fedfew.aggregators",
    {
        "fedfreq": ("weighted:fedfreq", "FedFreq (the paper, Eq. 10): clients that answer often weigh less."),
        "fedavg": ("weighted:fedavg", "FedAvg (McMahan et al. 2017): clients are weighted by their number of images."),
        "uniform": ("weighted:uniform", "Every client that answered has the same weight."),
        "status": ("weighted:status", "Learning status ((FL)², Lee et al. 2024): confident clients get less weight."),
        "fednova": ("weighted:fednova", "FedNova (Wang et al. 2020): changes are divided by the steps they took."),
        "median": ("weighted:median", "Coordinate-wise median (Yin et al. 2018)."),
        "trimmed-mean": ("robust:trimmed_mean", "Trimmed mean (Yin et al. 2018): without each coordinate's extremes."),
        "krum": ("robust:krum", "Krum (Blanchard et al. 2017): the model nearest to its neighbours, or a few."),
        "fltrust": ("robust:fltrust", "FLTrust (Cao et al. 2021): weights by the cosine with the server's step."),
    },
)
