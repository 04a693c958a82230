"""What methods share: the parts each gets, and its registry entry with the facts that a config is checked against."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Setting, settings_of
from fedfew.core.types import Aggregator, Method, Transform
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised

M = TypeVar("M", bound=Method)
POPULATION = "population"
"""The setting of a method that is K, the number of clients, where a config leaves it 0."""


@dataclass(frozen=True)
class Federated(Method):
    """A method with the three parts of the config that every method gets; its further fields are its settings."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator


@dataclass(frozen=True)
class Scenario:
    """What a method may know of the rest of a config; None where only the loaded data will tell (its own sites)."""

    clients: int | None
    validation: int | None
    """Labeled images held out for validation."""
    open: int | None
    """Public unlabeled images at the server."""
    frozen_backbone: bool
    real_sites: bool
    """Whether the clients are other machines, not a simulation."""
    class_prior: str
    """``vote.prior``: whose class shares pseudo-labels assume."""
    private: bool = False
    """Whether clients clip or noise what they send."""
    image_noise: float = 0.0
    """z of noise that hides single images; 0: none."""
    secure_sums: bool = False
    """Whether the server sees only the sum over the clients of a round."""


@dataclass(frozen=True)
class Entry(Generic[M]):
    """A method as a config names it. Two entries may share a class and differ in their defaults."""

    method: Callable[..., M]
    """Its class, or a function that makes it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields whose default differs from the class's."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """Settings as published where the default is another, such as one for smaller images."""
    aggregator: str = "fedavg"
    """The aggregator it was published with, used where the config names none."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Aggregators that make no sense with it, each with the reason."""
    on_features: str = ""
    """The method used instead on a frozen backbone, if the config has no settings of this one."""
    asks_clients: bool = True
    """False for a method that never uses clients."""
    pools: bool = False
    """True for a bound that trains on all clients' samples and true labels at the server: in simulation only."""
    sums: Literal["", "all", "active"] = ""
    """Whether a sum over its clients is enough: models with weights known beforehand, of all clients or of those that
    took a step."""
    strong_views: bool = False
    """Whether its clients use strong views, so that ``client.augment`` has an effect."""
    transforms: tuple[Transform, ...] = ()
    """Its own transforms, next to the method."""
    bounds_images: bool = False
    """Whether its replies are sums to which one image adds at most ``Expected.per_example``, all else equal, where
    ``Scenario.image_noise`` is set."""
    encoding: tuple[Transform, ...] = ()
    """Its own transforms next to the network, after privacy."""
    settle: Callable[[M, Scenario], Mapping[str, Any]] = lambda method, scenario: {}
    """Values for dotted config keys that were left open and follow from its settings."""
    refuse: Callable[[M, Scenario], Iterable[FedfewError]] = lambda method, scenario: ()
    """Why it cannot work in a scenario, each fault with the key."""

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Its settings with this entry's defaults."""
        return {
            name: replace(setting, default=self.defaults.get(name, setting.default))
            for name, setting in settings_of(self.method).items()
        }

    @property
    def as_published(self) -> dict[str, Any]:
        """The value of every setting with which the method was published."""
        return {name: setting.default for name, setting in self.settings.items()} | dict(self.published)

    def takes(self, part: str) -> bool:
        """Whether it takes a part of the config, such as ``objective``, ``vote`` or ``client_labels``."""
        return part in inspect.signature(self.method).parameters

    def settled(self, method: M, scenario: Scenario) -> dict[str, Any]:
        """Values for dotted config keys that follow from the method and the scenario: K, and what ``settle`` says."""
        open_ = POPULATION in self.settings and not getattr(method, POPULATION) and scenario.clients is not None
        return ({f"method.{POPULATION}": scenario.clients} if open_ else {}) | dict(self.settle(method, scenario))

    def build(self, **parts: Any) -> M:
        """The method with these parts and settings."""
        return self.method(**{**self.defaults, **parts})
