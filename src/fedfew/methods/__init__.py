"""Methods: one file each, and one line each in the registry below."""

from typing import Any

from fedfew.methods.all_labels import ALL_LABELS
from fedfew.methods.cbafed import CBAFED
from fedfew.methods.dsfl import DS_FL
from fedfew.methods.entry import Entry
from fedfew.methods.fedavg import FEDAVG, FEDBN, FEDPROX
from fedfew.methods.fedfew import FEDFEW
from fedfew.methods.fedmatch import FEDMATCH, FEDMATCH_LITE
from fedfew.methods.fedmix import FEDMIX
from fedfew.methods.fedmoments.method import FEDMOMENTS
from fedfew.methods.fedopt import FEDADAM, FEDYOGI
from fedfew.methods.fedsiam import FEDSIAM_MT, FEDSIAM_PI
from fedfew.methods.fl2 import FL2_ENTRY
from fedfew.methods.grouping import GROUPING
from fedfew.methods.pooled import POOLED
from fedfew.methods.scaffold import SCAFFOLD
from fedfew.methods.semifl import SEMIFL
from fedfew.methods.server_only import SERVER_ONLY

METHODS: dict[str, Entry[Any]] = {
    "fedfew": FEDFEW,
    "fedmoments": FEDMOMENTS,
    "fedmix": FEDMIX,
    "fedmatch": FEDMATCH,
    "fedmatch-lite": FEDMATCH_LITE,
    "semifl": SEMIFL,
    "fl2": FL2_ENTRY,
    "cbafed": CBAFED,
    "fedsiam-mt": FEDSIAM_MT,
    "fedsiam-pi": FEDSIAM_PI,
    "ds-fl": DS_FL,
    "grouping": GROUPING,
    "fedavg": FEDAVG,
    "fedprox": FEDPROX,
    "fedbn": FEDBN,
    "fedadam": FEDADAM,
    "fedyogi": FEDYOGI,
    "scaffold": SCAFFOLD,
    "server-only": SERVER_ONLY,
    "all-labels": ALL_LABELS,
    "pooled": POOLED,
}
