"""Methods: one file each, and one line each in the registry below."""

from collections.abc import Callable

from fedfew.core.types import Algorithm
from fedfew.methods.all_labels import AllLabels
from fedfew.methods.dsfl import DSFL
from fedfew.methods.fedavg import FedAvg, fedprox
from fedfew.methods.fedbn import fedbn
from fedfew.methods.fedfew import FedFew
from fedfew.methods.fedmatch import FedMatch, fedmatch_lite
from fedfew.methods.fedmix import FedMix
from fedfew.methods.fedsiam import FedSiam, fedsiam_pi
from fedfew.methods.fl2 import FL2
from fedfew.methods.grouping import Grouping
from fedfew.methods.semifl import SemiFL
from fedfew.methods.server_only import ServerOnly

METHODS: dict[str, Callable[..., Algorithm]] = {
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
