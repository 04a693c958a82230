"""Methods: one file each, and one line each in the registry below."""

from collections.abc import Callable

from fedfew.algorithms.aggregators import AGGREGATORS
from fedfew.algorithms.all_labels import AllLabels
from fedfew.algorithms.dsfl import DSFL
from fedfew.algorithms.fedavg import FedAvg, fedprox
from fedfew.algorithms.fedbn import fedbn
from fedfew.algorithms.fedfew import FedFew
from fedfew.algorithms.fedmatch import FedMatch, fedmatch_lite
from fedfew.algorithms.fedmix import FedMix
from fedfew.algorithms.fedsiam import FedSiam, fedsiam_pi
from fedfew.algorithms.fl2 import FL2
from fedfew.algorithms.grouping import Grouping
from fedfew.algorithms.objectives import OBJECTIVES
from fedfew.algorithms.semifl import SemiFL
from fedfew.algorithms.server_only import ServerOnly
from fedfew.core.types import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedfew": FedFew,
    "fedmix": FedMix,
    "fedmatch": FedMatch,
    "fedmatch-lite": fedmatch_lite,
    "semifl": SemiFL,
    "fl2": FL2,
    "fedsiam-mt": FedSiam,
    "fedsiam-pi": fedsiam_pi,
    "ds-fl": DSFL,
    "grouping": Grouping,
    "fedavg": FedAvg,
    "fedprox": fedprox,
    "fedbn": fedbn,
    "server-only": ServerOnly,
    "all-labels": AllLabels,
}

__all__ = ["AGGREGATORS", "ALGORITHMS", "OBJECTIVES"]
