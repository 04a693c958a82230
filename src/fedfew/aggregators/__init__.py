"""Aggregators: how the clients' vectors become one. Each is a function, and one line in the registry below."""

from collections.abc import Callable

from fedfew.aggregators.fednova import fednova
from fedfew.aggregators.robust import fltrust, krum, trimmed_mean
from fedfew.aggregators.weighted import fedavg, fedfreq, median, status, uniform
from fedfew.core.types import Aggregate

AGGREGATORS: dict[str, Callable[..., Aggregate]] = {
    "fedfreq": fedfreq,
    "fedavg": fedavg,
    "uniform": uniform,
    "status": status,
    "fednova": fednova,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "fltrust": fltrust,
}
