"""Tiny runs of every method and objective in which the clients learn something from the first round on."""

from typing import Any

import pytest

from fedfew.methods import METHODS
from fedfew.methods.fedmoments import share
from fedfew.objectives import OBJECTIVES

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 3,
    "participation": 0.67,
    "dataset__unlabeled": 36,
    "dataset__test": 20,
    "dataset__validation": 20,
}
LOW: dict[str, dict[str, Any]] = {
    "fedmoments": {"model__name": "efficientnet-lite0", "model__size": 32},
    "fedfew": {"method__warmup": 1, "method__threshold": 0.1},
    "ds-fl": {"method__subset": 20, "dataset__open": 60, "objective__threshold": 0.1},
    "fedmatch": {"method__interval": 1, "method__threshold": 0.1},
    "cbafed": {"method__highest": 0.1},
    "objective pi-model": {"objective__ramp": 0.0},
    "objective temporal-ensembling": {"objective__ramp": 0.0},
    "objective mean-teacher": {"objective__ramp": 0.0},
    "objective mixmatch": {"objective__ramp": 0.0},
}
LOW |= {name: {"method__threshold": 0.1} for name in ("fedmix", "fedmatch-lite", "semifl", "grouping")}
LOW |= {
    name: {"objective__threshold": 0.1} for name in ("fedavg", "fedprox", "fedbn", "fedadam", "fedyogi", "scaffold")
}
LOW |= {f"objective {name}": {"objective__threshold": 0.1} for name in ("pseudo-label", "uda", "fixmatch")}
"""Thresholds and ramps such that clients learn from the first round on."""
CASES: dict[str, dict[str, Any]] = {name: {"method__name": name} for name in METHODS}
CASES |= {f"objective {name}": {"method__name": "fedprox", "objective__name": name} for name in OBJECTIVES}
CASES = {name: settings | LOW.get(name, {}) for name, settings in CASES.items()} | {
    "label-shift": {"vote__prior": "em", "vote__warmup": 0.0},
    "server's statistics": {"method__anchor": "previous", "model__norm": "batch", "norm__policy": "server-data"},
    "own norms": {"model__norm": "batch", "norm__policy": "local", "server__augment": "strong"},
    "clipped": {"privacy__clip": 1.0},
    "compressed": {"compression__kind": "top-k"},
}


def few_fits(patch: pytest.MonkeyPatch | None = None) -> None:
    """Where only bits or devices matter, fedmoments cross-validates one share and penalty instead of many."""
    patch = patch or pytest.MonkeyPatch()
    patch.setattr(share, "SHARES", (0.5,))
    patch.setattr(share, "PENALTIES", (1.0,))
