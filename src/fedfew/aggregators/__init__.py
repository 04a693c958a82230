"""Aggregators: how the clients' vectors become one. Each is a function, and one line in the registry below."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.registry import Registry

if TYPE_CHECKING:
    from fedfew.core.types import Aggregate

AGGREGATORS: "Registry[Callable[..., Aggregate]]" = Registry(
    "fedfew.aggregators",
    {
        "fedfreq": (
            "fedfew.aggregators.weighted:fedfreq",
            "FedFreq (the paper, Eq. 10): the more often a client has participated, the lower its weight.",
        ),
        "fedavg": (
            "fedfew.aggregators.weighted:fedavg",
            "FedAvg (McMahan et al. 2017): clients are weighted by their number of images.",
        ),
        "uniform": ("fedfew.aggregators.weighted:uniform", "Every client that answered has the same weight."),
        "status": (
            "fedfew.aggregators.weighted:status",
            "Learning status ((FL)², Lee et al. 2024): confident clients get less weight.",
        ),
        "fednova": (
            "fedfew.aggregators.weighted:fednova",
            "FedNova (Wang et al. 2020): changes divided by the steps they took, so that more work adds no weight.",
        ),
        "median": ("fedfew.aggregators.weighted:median", "Coordinate-wise median (Yin et al. 2018)."),
        "trimmed-mean": (
            "fedfew.aggregators.robust:trimmed_mean",
            "Trimmed mean (Yin et al. 2018): the smallest and largest values of each coordinate are left out.",
        ),
        "krum": (
            "fedfew.aggregators.robust:krum",
            "Krum (Blanchard et al. 2017): the model nearest to its neighbours, or the mean of the best few.",
        ),
        "fltrust": (
            "fedfew.aggregators.robust:fltrust",
            "FLTrust (Cao et al. 2021): clients are weighted by their cosine with the server's step.",
        ),
    },
)
