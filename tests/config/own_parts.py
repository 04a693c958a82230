"""Parts of a user's own, as a config names them: one of each kind, and some that do not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfew.aggregators.weighted import weighted_mean
from fedfew.core.layout import Payload, Vector
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import (
    Aggregate,
    Aggregator,
    ClientSite,
    Contribution,
    Method,
    Outcome,
    RoundEnd,
    ServerSite,
    ServerState,
    Trained,
    Updates,
)
from fedfew.data.dataset import Dataset
from fedfew.data.samples import Vectors
from fedfew.methods.entry import Entry
from fedfew.objectives.objective import Batch, Step
from fedfew.training.label_shift import Adjust, unadjusted
from fedfew.training.sgd import LocalSGD, descend
from fedfew.training.supervised import Supervised, train_server
from fedfew.training.updates import contributions, scalar


def by_root(
    contributions: Sequence[Contribution],
    omega: Vector,
    sigma: Vector,
    *,
    power: Annotated[NonNegative, Doc("images to this power weigh")] = 0.5,
) -> Aggregate:
    """w_k ∝ n_k^power."""
    raw = [part.examples**power for part in contributions]
    return weighted_mean(contributions, [w / sum(raw) for w in raw])


def first_only(contributions: Sequence[Contribution], omega: Vector, sigma: Vector, place: int = 0) -> Aggregate:
    """The client at a place; its setting has no Doc."""
    return weighted_mean([contributions[place]], [1.0])


@dataclass(frozen=True)
class Sharpen:
    """Entropy of the outputs: a loss without labels."""

    weight: Annotated[NonNegative, Doc("weight of the loss")] = 1.0
    labels: ClassVar[bool] = False

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        def step(indices: Tensor) -> Step:
            p = site.network(site.samples.take(indices)).softmax(1)
            return Step(-self.weight * (p * p.clamp_min(1e-12).log()).sum(1).mean())

        return step


@dataclass(frozen=True)
class Halfway(Method):
    """ω halfway between the server's model and the clients', whose clients pull their weights towards zero."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    share: Annotated[NonNegative, Doc("weight of the clients")] = 0.5

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return replace(state, sigma=train_server(self.server, state.omega, state, site, rng))

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return {"omega": state.omega, "lr": scalar(self.client.rate(state.round, state.validation))}

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        site.network.load(payload["omega"])
        lr = float(payload["lr"])
        descend(
            site.network, self.client, lr, len(site), lambda i: site.network(site.samples.take(i)).square().mean(), rng
        )
        return Trained({"psi": site.network.snapshot()})

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        psi = self.aggregator(contributions(state, updates), state.omega, state.sigma)
        omega = self.share * psi.vector + (1 - self.share) * state.sigma
        return replace(state, omega=omega), Outcome(psi.weights)


HALFWAY = Entry(Halfway, {"share": 0.4}, aggregator=f"{__name__}:by_root", unfit={"krum": "it is only a test"})


def mostly_halfway(server: Supervised, client: LocalSGD, aggregator: Aggregator) -> Halfway:
    """A method as a function that says what it returns."""
    return Halfway(server, client, aggregator, 0.9)


def silent(server: Supervised, client: LocalSGD, aggregator: Aggregator):  # type: ignore[no-untyped-def]
    """A method as a function that does not."""
    return Halfway(server, client, aggregator, 0.9)


def round_robin(
    labels: NDArray[np.int64], clients: int, rng: np.random.Generator, *, offset: int = 0
) -> list[NDArray[np.int64]]:
    """Image i goes to client (i + offset) mod K."""
    owner = (np.arange(len(labels)) + offset) % clients
    return [np.flatnonzero(owner == k) for k in range(clients)]


def forgetful(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[list[int]]:
    """Leaves most images out."""
    return [[k] for k in range(clients)]


def one_short(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """One list too few."""
    return round_robin(labels, clients - 1, rng)


def needy(contributions: Any, omega: Any, sigma: Any, secret: int) -> Any:
    """Asks for something that nobody gives."""


def short(contributions: Any, omega: Any) -> Any:
    """Takes too little."""


class Empty:
    """Neither a method nor an objective."""

    def __init__(self, server: Any = None, client: Any = None, aggregator: Any = None) -> None: ...


NUMBER = 3


class Fixed(nn.Sequential):
    """A torch model that knows its images: 28×28 grey ones of ten classes."""

    def __init__(self, hidden: int = 8, path: str | None = None) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def for_classes(classes: int, *, deep: bool = False) -> nn.Module:
    """Asks for the number of classes alone."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes) if deep else nn.Linear(784, classes))


def in_order(planes: int, side: int, kinds: int) -> nn.Module:
    """Other names: given channels, size and classes in this order."""
    return nn.Sequential(nn.Flatten(), nn.Linear(planes * side * side, kinds))


INSTANCE = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def three_classes() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))


def another_size() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(100, 10))


def no_model() -> str:
    return "a net"


def mirrored(images: Tensor, rng: torch.Generator) -> Tensor:
    """An augmentation."""
    return images.flip(3)


def vectors() -> Dataset:
    """Vectors of one's own."""
    labels = torch.arange(400) % 2
    train, test = (LabeledSet(Vectors(torch.zeros(n, 1, 8)), labels[:n]) for n in (300, 100))
    return Dataset("vectors", train, test, ("a", "b"))


class Undecorated(Halfway):
    """Its new setting would be ignored without a dataclass."""

    share: Annotated[float, Doc("share")] = 0.5


@dataclass(frozen=True)
class Knowing(Halfway):
    """It learns the number of clients."""

    population: Annotated[int, Doc("K")] = 0


def vector_only(contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Any:
    """An aggregator that forgets the weights."""
    return omega
