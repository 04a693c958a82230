"""The sections of a config: which there are, what each may name, and the settings it has."""

from collections.abc import Callable, Mapping
from typing import Any

from fedfew.aggregators import AGGREGATORS
from fedfew.config.names import entry_of, find, is_own, own_settings
from fedfew.config.tree import DatasetSettings, FleetSettings, General
from fedfew.core.engine import Engine
from fedfew.core.evaluation import Evaluation
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
PLAIN: dict[str, list[Callable[..., Any]]] = {
    "server": [LocalSGD, Supervised],
    "client": [ClientSGD],
    "client_labels": [ClientLabels],
    "vote": [Voting],
    "norm": [NormPolicy],
    "privacy": [Privacy],
    "compression": [Compression],
    "availability": [Availability],
    "gate": [Gate],
    "evaluate": [Evaluation],
    "engine": [Engine],
}
SECTIONS = ["dataset", "partition", "model", "method", "objective", "aggregator", *PLAIN, "fleet"]


def settings_for(section: str, name: str) -> dict[str, Setting]:
    """The settings a section has, given the name it chose."""
    if section == "":
        return settings_of(General)
    if section == "dataset":
        return _settings(section, name) | settings_of(DatasetSettings)
    if section == "fleet":
        return settings_of(FleetSettings)
    if section in PLAIN:
        return {key: setting for target in PLAIN[section] for key, setting in settings_of(target).items()}
    return _settings(section, name)


def _settings(section: str, name: str) -> dict[str, Setting]:
    if section == "method":
        entry = entry_of(name)
        return entry.settings or (own_settings(section, entry.method) if is_own(name) else {})
    target = find(section, name, NAMED[section][1])
    return own_settings(section, target) if is_own(name) else settings_of(target)
