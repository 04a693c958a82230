"""The sections of a config: which there are, what each may name, and the settings it has."""

from collections.abc import Callable, Mapping
from typing import Any

from fedfew.aggregators import AGGREGATORS
from fedfew.config.names import entry_of, find, is_foreign, own_settings
from fedfew.config.tree import DatasetSettings, FleetSettings, General
from fedfew.core.engine import Engine
from fedfew.core.evaluation import Evaluation
from fedfew.core.samples import OwnView
from fedfew.core.settings import Setting, settings_of
from fedfew.data import DATASETS, PARTITIONS
from fedfew.data.shares import ClientLabels
from fedfew.methods import METHODS
from fedfew.models import MODELS
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.cohort import Availability
from fedfew.runtime.gate import Gate
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import ClientSGD, LocalSGD
from fedfew.training.supervised import Supervised
from fedfew.transforms import Compression, NormPolicy, Privacy

AUTO = "auto"
"""The aggregator that the method was published with."""
FLEETS = ("inline", "pool", "flower")


def supervised(rounds: int, own: OwnView | None, **settings: Any) -> Supervised:
    """The section [server] has the settings of SGD and those of training on labels."""
    sgd = LocalSGD(**{key: settings.pop(key) for key in settings_of(LocalSGD)}, rounds=rounds)
    return Supervised(sgd, **settings, own=own)


# section → key that names what the section is about, the registry of names, the default
NAMED: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "dataset": ("name", DATASETS, "cifar10"),
    "partition": ("kind", PARTITIONS, "dirichlet"),
    "model": ("name", MODELS, "resnet9"),
    "method": ("name", METHODS, "fedmix"),
    "objective": ("name", OBJECTIVES, "pseudo-label"),
    "aggregator": ("name", AGGREGATORS, AUTO),
    "fleet": ("kind", dict.fromkeys(FLEETS), "pool"),
}
PLAIN: dict[str, Callable[..., Any]] = {
    "server": supervised,
    "client": ClientSGD,
    "client_labels": ClientLabels,
    "vote": Voting,
    "norm": NormPolicy,
    "privacy": Privacy,
    "compression": Compression,
    "availability": Availability,
    "gate": Gate,
    "evaluate": Evaluation,
    "engine": Engine,
}
SECTIONS = ["dataset", "partition", "model", "method", "objective", "aggregator", *PLAIN, "fleet"]


ALWAYS: dict[str, Callable[..., Any]] = {"": General, "fleet": FleetSettings, **PLAIN}
"""Sections whose settings do not depend on a name."""


def settings_for(section: str, name: str) -> dict[str, Setting]:
    """The settings a section has, given the name it chose."""
    if section == "server":
        return settings_of(LocalSGD) | settings_of(Supervised)
    if section in ALWAYS:
        return settings_of(ALWAYS[section])
    if section == "method":
        entry = entry_of(name)
        return entry.settings or (own_settings(section, entry.method) if is_foreign(name, METHODS) else {})
    registry = NAMED[section][1]
    target = find(section, name, registry)
    own = own_settings(section, target) if is_foreign(name, registry) else settings_of(target)
    return own | settings_of(DatasetSettings) if section == "dataset" else own
