"""The config as a tree of frozen objects: every setting has its type, and every part is built once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt, Le
from torch import nn

from fedfew.config import REGISTRIES
from fedfew.config.names import SITES, Named, is_own, settings_named
from fedfew.core.engine import Engine
from fedfew.core.evaluation import Evaluation
from fedfew.core.samples import OwnView
from fedfew.core.settings import Count, Doc, Natural, NonNegative, Setting, settings_of
from fedfew.core.types import Aggregate, Method, Transform
from fedfew.data.dataset import Dataset
from fedfew.data.federation import Split
from fedfew.data.shares import ClientLabels
from fedfew.methods.entry import Entry, Scenario
from fedfew.runtime.exchange import Availability, cohort_size
from fedfew.runtime.gate import Gate
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import ClientSGD, LocalSGD
from fedfew.training.supervised import Supervised
from fedfew.transforms import Compression, NormPolicy, Privacy

if TYPE_CHECKING:
    from fedfew.objectives.objective import Objective


@dataclass(frozen=True)
class General:
    """The keys outside any section."""

    seed: Annotated[
        Natural, Doc("random seed of everything: model, training, cohorts, and the split unless dataset.seed is given")
    ] = 0
    rounds: Annotated[Count, Doc("rounds of training")] = 150
    clients: Annotated[Count, Doc("K: number of clients")] = 100
    participation: Annotated[float, Gt(0), Le(1), Doc("F: share of the clients selected in each round")] = 0.05
    labels: Annotated[Natural, Doc("N_s: labeled images at the server; 0 only where clients hold labels")] = 1000
    min_updates: Annotated[Count, Doc("a round with fewer usable updates than this is skipped")] = 1
    max_skipped: Annotated[Count, Doc("the run stops after this many rounds in a row without a usable update")] = 10
    start: Annotated[
        str, Doc("finished run, or model file, whose weights training starts from; empty: random weights from the seed")
    ] = ""


@dataclass(frozen=True, eq=False)
class DatasetSettings(Split):
    """Which images, and how they are split."""

    source: Named[Dataset] = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True)
class FleetSettings:
    """Where the clients train."""

    workers: Annotated[Natural, Doc("pool: number of processes; 0: one for each core (on a GPU: this one alone)")] = 0
    devices: Annotated[
        str, Doc("pool: one process on each of these, such as cuda:0,cuda:1; empty: all on engine.device")
    ] = ""
    timeout: Annotated[
        NonNegative,
        Doc("pool, flower: seconds to wait for a client before it counts as missing; 0: no limit (flower: an hour)"),
    ] = 0.0
    sites: Annotated[
        Count, Doc("flower: number of sites in a trial on this machine; the clients are divided among them")
    ] = 2
    network: Annotated[str, Doc("flower: folder of a real network made by `fedfew deploy init`; empty: a trial")] = ""
    only: Annotated[str, Doc("flower: names of the sites that a run on a real network asks; empty: all")] = ""
    min_clients: Annotated[
        Natural, Doc("flower: clients that must be online for a round; 0: all at the start, then at least one")
    ] = 0
    wait: Annotated[NonNegative, Doc("flower: seconds to wait for min_clients before the run stops")] = 300.0
    kind: str = "pool"


@dataclass(frozen=True, eq=False)
class ModelSettings(Named[nn.Module]):
    """The network that a config names."""

    @property
    def frozen(self) -> bool:
        """Whether only a head is trained, on vectors: the user's own, or features of a pretrained backbone."""
        return self.name == LINEAR or self.settings.get("train") == "head"

    @property
    def norm(self) -> str:
        """The kind of its normalisation layers; unknown for a user's own model without such a setting."""
        return str(self.settings.get("norm", "unknown" if self.own else "none"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Config(General):
    """A checked config: every setting has its value, and every part is built."""

    dataset: DatasetSettings
    partition: Named[Any]
    model: ModelSettings
    method: Method
    method_name: str
    entry: Entry[Any]
    """The method's registry entry, with the facts about it."""
    objective: "Objective"
    objective_name: str
    aggregator: Named[Aggregate]
    server: Supervised
    client: ClientSGD
    client_labels: ClientLabels
    vote: Voting
    norm: NormPolicy
    privacy: Privacy
    compression: Compression
    availability: Availability
    gate: Gate
    evaluate: Evaluation
    engine: Engine
    fleet: FleetSettings
    document: dict[str, Any]
    """The same as a plain table with every key, as in run.toml: for files, hashes and comparisons."""

    @property
    def own_sites(self) -> bool:
        """Whether the dataset has its own sites, so that nothing is partitioned."""
        return self.partition.name == SITES

    @property
    def remote(self) -> bool:
        """Whether the clients are other machines, which hold their own images."""
        return self.fleet.kind == "flower" and bool(self.fleet.network)

    @property
    def cohort(self) -> int:
        """Clients selected in a round."""
        return cohort_size(self.participation, self.clients)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms of every message, innermost first: the method's own, norms, privacy, compression, encoding."""
        asked = (self.norm.transform(), self.privacy.transform(), self.compression.transform())
        chosen = (transform for transform in asked if transform is not None)
        encoding = () if self.privacy.sums == "secure" else self.entry.encoding  # masked numbers need all their bits
        return (*self.entry.transforms, *chosen, *encoding)

    @property
    def scenario(self) -> Scenario:
        """What the method may know of the rest of the config."""
        return Scenario(
            clients=None if self.own_sites else self.clients,
            validation=None if self.own_sites else self.dataset.validation,
            open=None if self.own_sites else self.dataset.open,
            frozen_backbone=self.model.frozen and not self.model.settings.get("hidden"),
            real_sites=self.remote,
            class_prior=self.vote.prior,
            private=self.privacy.transform() is not None,
            image_noise=self.privacy.noise if self.privacy.unit == "image" else 0.0,
            secure_sums=self.privacy.sums == "secure",
        )


LINEAR = "linear"
"""The model that is nothing but a head, on the user's own vectors."""
AUTO = "auto"
"""The aggregator that the method was published with."""
FLEETS = ("inline", "pool", "flower")


def supervised(rounds: int, own: OwnView | None, **settings: Any) -> Supervised:
    """The section [server] has the settings of SGD and those of training on labels."""
    sgd = LocalSGD(**{key: settings.pop(key) for key in settings_of(LocalSGD)}, rounds=rounds)
    return Supervised(sgd, **settings, own=own)


# section → key that names what the section is about, the registry of names, the default
NAMED: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "dataset": ("name", REGISTRIES["dataset"], "cifar10"),
    "partition": ("kind", REGISTRIES["partition"], "dirichlet"),
    "model": ("name", REGISTRIES["model"], "resnet9"),
    "method": ("name", REGISTRIES["method"], "fedmix"),
    "objective": ("name", REGISTRIES["objective"], "pseudo-label"),
    "aggregator": ("name", REGISTRIES["aggregator"], AUTO),
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
    named = settings_named(section, name)
    return named | settings_of(DatasetSettings) if section == "dataset" else named


def is_known(section: str, name: Any) -> bool:
    """Whether a section can name this: an entry of its registry, or the user's own."""
    auto = section == "aggregator" and name == AUTO
    return isinstance(name, str) and (auto or name in NAMED[section][1] or is_own(name))
