"""The types of a run and the interfaces between layers: sites, updates, server state, Method, Transform, Fleet."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedfew.core.errors import Refusal
from fedfew.core.layout import Expected, Layout, Payload, Reply, Schema, Vector, nbytes
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet, OwnView, Samples
from fedfew.core.text import plain

Report = Callable[[int, int], None]
"""Called with the number of images done and the total."""


@dataclass(frozen=True, eq=False)
class ServerSite:
    """What the server works with: its few labels, and the number of classes."""

    network: Network
    labeled: LabeledSet
    classes: int
    open: Samples | None = None
    """Public unlabeled samples for which clients send predictions (DS-FL)."""
    pool: LabeledSet | None = None
    """All images of a simulation with their true labels, the server's among them: only for a method that ``pools``."""
    cohort_images: int = 0
    """Where there is a pool, how many images the clients of a round hold, on average."""
    passes: "Passes | None" = None
    """Tracks the warm-up, the server's long training before the first round."""


@dataclass(frozen=True, eq=False)
class ClientSite:
    """What a client works with: samples only. There is no field for labels, so none can reach ``train_client``."""

    client: int
    network: Network
    samples: Samples
    classes: int
    memory: dict[str, Tensor] = field(default_factory=dict)
    """Tensors the client keeps between rounds (FedBN, temporal ensembling); replaced, never sent."""
    own_view: OwnView | None = None
    """The user's own strong augmentation, if any."""
    fewest: int = 0
    """A class with fewer images than this is left out of sums by class: they would be nearly an image."""

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, eq=False)
class LabeledClientSite(ClientSite):
    """A client with labels for a few of its images: only where [client_labels] in the config gives it some."""

    labeled: LabeledSet = field(kw_only=True)
    """The labeled samples (they are among ``samples`` too) with their labels."""


@dataclass(frozen=True, eq=False)
class OracleSite:
    """A client with all its labels: only for FedAvg with true labels, and only in simulation."""

    client: int
    network: Network
    labeled: LabeledSet
    classes: int


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a client's training: the reply that is sent, metrics, and votes that never leave the site."""

    reply: Reply
    metrics: dict[str, float] = field(default_factory=dict)
    votes: Tensor | None = None
    """int64, one per image: the pseudo-label, or −1 where the vote was not confident. A simulation compares them with
    the true labels for the report; on a real site they are dropped."""
    examples: int | None = None
    """The number of images the client reports, if not the true number (privacy)."""


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """A client's answer as the fleet passes it on."""

    client: int
    reply: Mapping[str, Tensor]
    """In a large round it may be on disk: look at one client at a time."""
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """A selected client that sent nothing usable, and why."""

    client: int
    code: Refusal
    reason: str
    """One short line of printable characters, whoever wrote it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason))


@dataclass(frozen=True, eq=False)
class ServerState:
    """Exactly what a checkpoint holds. ``round`` counts completed rounds."""

    round: int
    omega: Vector
    sigma: Vector
    participation: dict[int, int] = field(default_factory=dict)
    """How often an update of each client was used; only those are listed, so a million clients cost nothing."""
    refused: dict[int, int] = field(default_factory=dict)
    """How often the gate or the screen refused an update of each client."""
    lengths: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By name of a tensor, the median length of the clients' changes in each of the last rounds."""
    validation: tuple[float, ...] = ()
    """Validation accuracy after each round, for learning-rate plateaus."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """Other tensors that a method carries from round to round."""
    ema: Vector | None = None
    """The exponential moving average of ω over the rounds, where that is evaluated and saved as the model."""

    @property
    def evaluated(self) -> Vector:
        """The weights that are scored, and become the model at the end."""
        return self.omega if self.ema is None else self.ema

    def answered(self, client: int) -> int:
        """q_k of FedFreq: rounds in which a client answered; refused answers count, so they raise no weight."""
        return self.participation.get(client, 0) + self.refused.get(client, 0)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round gave besides the new state: it is recorded, and not carried on."""

    weights: dict[int, float] = field(default_factory=dict)
    """The aggregator's weight of each client."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The method's own metrics, such as gradient diversity."""
    clients: Vector | None = None
    """The clients' model before the server's turn, scored as ``accuracy_clients``."""
    failure: str = ""
    """Why the round is skipped although clients answered: numbers that could not be computed."""


RoundEnd = tuple[ServerState, Outcome]
Updates = Sequence[ClientUpdate]
"""The answers of a round that count, in the order of the clients."""


@dataclass(frozen=True)
class Contribution:
    """What an aggregator sees of one client."""

    client: int
    vector: Vector
    """ψ_k. In a large round it may be on disk: look at one client at a time, or at a piece of all."""
    examples: int
    participation: int
    """q_k: how often the client has answered, this round and refused answers included."""
    steps: float = 1.0
    """a_k: local work in plain SGD steps, 0 for a client that had nothing to learn from."""
    status: float = 0.0
    """How confident the client's model is on its own images, 0..1, where a method measures it ((FL)²'s τ_k)."""


@dataclass(frozen=True)
class Aggregate:
    """The aggregator's result, and the weight each client got (empty for rules that are not a weighted mean)."""

    vector: Vector
    weights: dict[int, float]


class Aggregator(Protocol):
    """Combines client vectors; ``omega`` is what the clients started from, ``sigma`` the server's own model."""

    def __call__(self, contributions: Sequence[Contribution], omega: Vector, sigma: Vector) -> Aggregate: ...


class Method:
    """A method: its steps and its messages. A frozen dataclass with pure methods; its fields are its settings.

    Four steps make a round: ``before_clients``, ``broadcast``, ``train_client`` and ``after_clients``. The rest has
    defaults that suit methods whose clients reply with a model.
    """

    state_format: ClassVar[int] = 1
    """Raised when the method can no longer continue from states that it made before; a resume refuses those."""

    def start(self, omega: Vector) -> ServerState:
        """The state before the first round: σ_0 = ω_0."""
        return ServerState(0, omega, omega)

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The server's turn before the first round; taken instead of ``before_clients`` until a client has answered."""
        return self.before_clients(state, site, rng)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        raise NotImplementedError

    def broadcast(self, state: ServerState, client: int) -> Payload:
        raise NotImplementedError

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        raise NotImplementedError

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        raise NotImplementedError

    def bytes_down(self, state: ServerState, client: int, payload: Payload) -> int:
        """Bytes that are sent: the payload's, unless the client already has a part of it."""
        return nbytes(payload)

    def asks(self, state: ServerState) -> bool:
        """Whether clients are selected in this round; False once the method needs nothing more from them."""
        return True

    def refused(self, payload: Payload, layout: Layout) -> str:
        """Why a site should not answer this payload: an honest server never sends it; empty if it may."""
        return ""

    def reply_schema(self, layout: Layout) -> Schema:
        """What the gate accepts: {"psi"}, one vector near the ω that was sent."""
        return {"psi": Expected((layout.size,), near="omega")}


class Transform:
    """Changes the messages of any method: at the client before and after training, and at the server.

    Every hook has a default that changes nothing. ``schema`` is always what the method (or the transform inside this
    one) sends; ``payload`` is what the server sent, untouched.
    """

    pools: ClassVar[bool] = False
    """True where the server needs all clients' images (``ServerSite.pool``): in simulation only."""
    keeps_norms: ClassVar[bool] = False
    """True where clients keep their normalisation layers to themselves."""

    @property
    def noisy(self) -> bool:
        """Whether single updates are so noisy that only their mean is meaningful."""
        return False

    def travels(self, schema: Schema, layout: Layout) -> Schema:
        """What a reply looks like on the wire."""
        return schema

    def incoming(self, payload: Payload, schema: Schema, site: ClientSite) -> Payload:
        """At the client: the payload as the method sees it."""
        return payload

    def outgoing(
        self, trained: Trained, payload: Payload, schema: Schema, site: ClientSite, rng: torch.Generator
    ) -> Trained:
        """At the client: what is sent instead of the method's reply."""
        return trained

    def decode(self, update: ClientUpdate, payload: Payload, schema: Schema, layout: Layout) -> ClientUpdate:
        """At the server: the update as it was before ``outgoing``, from one that has passed the gate."""
        return update

    def check(self, site: ServerSite) -> None:
        """Before the first round: raise if the model does not fit."""

    def after_round(self, state: ServerState, site: ServerSite) -> ServerState:
        """At the server, after the method's own turn."""
        return state


@runtime_checkable
class Oracle(Protocol):
    """A method that gets the clients' labels: a bound, possible in simulation only."""

    def train_with_labels(self, payload: Payload, site: OracleSite, rng: torch.Generator) -> Trained: ...


@runtime_checkable
class Forgetting(Protocol):
    """A method whose server keeps what each client sent, and can make its model without one of them."""

    def forget(self, state: ServerState, client: int, site: ServerSite) -> ServerState | None:
        """The state and model without a client's sums; None if they were not kept."""


@dataclass(frozen=True)
class Scores:
    """How good a model is on held-out images."""

    accuracy: float
    loss: float
    validation: float | None
    """Accuracy on the validation images, if there are any."""
    clients: float | None = None
    """Test accuracy of the clients' model before the server's turn, if it was scored."""
    validation_loss: float | None = None


Scoring = Callable[[], Scores]
"""Waits for scores that another process may still be computing."""


class Passes(Protocol):
    """Tracks a warm-up pass by pass: shows progress, saves its tensors, and continues it after a stop."""

    def begin(self, tensors: Mapping[str, Tensor], rng: torch.Generator) -> int:
        """The passes that an earlier process completed; tensors and generator are restored to that point."""

    def passed(self, done: int, total: int, tensors: Mapping[str, Tensor], rng: torch.Generator) -> None:
        """Called after each pass."""

    def take(self) -> tuple[float, float]:
        """Seconds of the passes since the last call, in this process and in total."""


class Fleet:
    """Where clients train. Clients that do not answer are returned as Missing; the defaults suit a single process."""

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterable[ClientUpdate | Missing]:
        raise NotImplementedError

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        raise NotImplementedError

    def online(self) -> Sequence[int] | None:
        """The clients that can be reached; None where that is all of them."""
        return None

    def traffic(self) -> dict[str, int]:
        """Bytes really sent in the last round, on a network."""
        return {}

    def memory(self) -> dict[int, dict[str, Tensor]]:
        """What clients keep between rounds, for the checkpoint."""
        return {}

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """Give clients what a checkpoint has kept for them."""

    def end(self) -> None:
        """Called when the last round is done."""

    def close(self) -> None:
        """Called in any case: nothing may be left running."""
