"""Methods: one file each, and one line each in the registry below."""

from collections.abc import Callable

from fedfew.core.types import Method
from fedfew.methods.all_labels import AllLabels
from fedfew.methods.cbafed import CBAFed
from fedfew.methods.dsfl import DSFL
from fedfew.methods.fedavg import FedAvg, FedProx
from fedfew.methods.fedbn import FedBN
from fedfew.methods.fedfew import FedFew
from fedfew.methods.fedmatch import FedMatch, FedMatchLite
from fedfew.methods.fedmix import FedMix
from fedfew.methods.fedmoments import FedMoments
from fedfew.methods.fedopt import FedAdam, FedYogi
from fedfew.methods.fedsiam import FedSiam, FedSiamPi
from fedfew.methods.fl2 import FL2
from fedfew.methods.grouping import Grouping
from fedfew.methods.pooled import Pooled
from fedfew.methods.scaffold import Scaffold
from fedfew.methods.semifl import SemiFL
from fedfew.methods.server_only import ServerOnly

METHODS: dict[str, Callable[..., Method]] = {
    "fedfew": FedFew,
    "fedmoments": FedMoments,
    "fedmix": FedMix,
    "fedmatch": FedMatch,
    "fedmatch-lite": FedMatchLite,
    "semifl": SemiFL,
    "fl2": FL2,
    "cbafed": CBAFed,
    "fedsiam-mt": FedSiam,
    "fedsiam-pi": FedSiamPi,
    "ds-fl": DSFL,
    "grouping": Grouping,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedbn": FedBN,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "scaffold": Scaffold,
    "server-only": ServerOnly,
    "all-labels": AllLabels,
    "pooled": Pooled,
}
