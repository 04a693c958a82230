"""The sections of a config: which there are, what each may name, and the settings it has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Gt, Le

from fedfew.aggregators import AGGREGATORS
from fedfew.config.names import entry_of, find, is_own, own_settings
from fedfew.core.engine import Engine
from fedfew.core.evaluation import Evaluation
from fedfew.core.settings import Count, Doc, Natural, NonNegative, Setting, settings_of
from fedfew.data import DATASETS, PARTITIONS
from fedfew.data.shares import ClientLabels
from fedfew.methods import METHODS
from fedfew.models import MODELS
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.cohort import Availability
from fedfew.runtime.gate import Gate
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import ClientViews, LocalSGD, Supervised
from fedfew.transforms.compression import Compression
from fedfew.transforms.norm_policy import NormPolicy
from fedfew.transforms.privacy import Privacy


@dataclass(frozen=True)
class General:
    """The keys outside any section."""

    seed: Annotated[Natural, Doc("random seed of model, training and cohorts; the split has its own dataset.seed")] = 0
    rounds: Annotated[Count, Doc("rounds of training")] = 150
    clients: Annotated[Count, Doc("K: number of clients")] = 100
    participation: Annotated[float, Gt(0), Le(1), Doc("F: share of the clients selected in a round")] = 0.05
    labels: Annotated[Natural, Doc("N_s: labeled images at the server; 0 only where clients hold labels")] = 1000
    min_updates: Annotated[Count, Doc("usable updates a round needs; with fewer it is skipped")] = 1
    max_skipped: Annotated[Count, Doc("rounds in a row without any update after which the run stops")] = 10
    start: Annotated[str, Doc("finished run, or its model file, to start from; empty: weights drawn from the seed")] = (
        ""
    )


@dataclass(frozen=True)
class DatasetSettings:
    """Which images, and how they are split."""

    split: Annotated[
        Literal["standard", "paper"], Doc("official test set, or train and test merged with 2,000 held out")
    ] = "standard"
    seed: Annotated[Natural, Doc("draws the split and the partition")] = 0
    validation: Annotated[
        Natural, Doc("labeled images held out for validation; of your own images in folders at most a quarter")
    ] = 1000
    validation_from: Annotated[
        Literal["test", "server"], Doc("your own images in folders: which labels are held out for validation")
    ] = "test"
    test: Annotated[Natural, Doc("test images; 0: all that the split gives")] = 0
    unlabeled: Annotated[Natural, Doc("images divided among the clients; 0: all that are left")] = 0
    open: Annotated[Natural, Doc("public unlabeled images at the server, which no client has (ds-fl)")] = 0
    normalize: Annotated[
        Literal["unit", "standard"], Doc("pixels divided by 255, or also scaled to mean 0 and deviation 1")
    ] = "unit"


@dataclass(frozen=True)
class FleetSettings:
    """Where the clients train."""

    workers: Annotated[Natural, Doc("pool: number of processes; 0: one for each core (on a GPU: this one alone)")] = 0
    timeout: Annotated[
        NonNegative, Doc("pool, flower: seconds after which a client counts as missing; 0: no limit (flower: an hour)")
    ] = 0.0
    sites: Annotated[Count, Doc("flower: sites of a trial on this machine, among which the clients are divided")] = 2
    network: Annotated[str, Doc("flower: folder of a real network made by `fedfew deploy init`; empty: a trial")] = ""
    min_clients: Annotated[
        Natural, Doc("flower: clients that must be online for a round; 0: all at the start, then at least one")
    ] = 0
    wait: Annotated[NonNegative, Doc("flower: seconds to wait for min_clients before the run stops")] = 300.0


FLEETS = ("inline", "pool", "flower")

# section → key that names what the section is about, the registry of names, the default
NAMED: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "dataset": ("name", DATASETS, "cifar10"),
    "partition": ("kind", PARTITIONS, "dirichlet"),
    "model": ("name", MODELS, "resnet9"),
    "method": ("name", METHODS, "fedmix"),
    "objective": ("name", OBJECTIVES, "pseudo-label"),
    "aggregator": ("name", AGGREGATORS, "auto"),
    "fleet": ("kind", dict.fromkeys(FLEETS), "pool"),
}
PLAIN: dict[str, list[Callable[..., Any]]] = {
    "server": [LocalSGD, Supervised],
    "client": [LocalSGD, ClientViews],
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
