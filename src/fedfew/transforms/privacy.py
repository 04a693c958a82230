"""Differential privacy at the client: its change is clipped and blurred with Gaussian noise before it leaves.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018,
with the noise added by each client itself, so that the server need not be trusted with the clear update.

    sent = ω + (ψ_k − ω) · min(1, C / ‖ψ_k − ω‖) + N(0, (z C)² I)

Two data sets of a client move ``sent`` by at most 2C before the noise, whatever they are: one round is a Gaussian
mechanism of multiplier z/2 for the whole data of the client. Nothing else leaves: no counts, no metrics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Lt

from fedfew.core.layout import Layout, Vector
from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import (
    Algorithm,
    ClientSite,
    ClientUpdate,
    Payload,
    Schema,
    ServerSite,
    ServerState,
    Trained,
)


@dataclass(frozen=True)
class Privacy:
    """What is done to an update before it leaves its client; off by default."""

    clip: Annotated[NonNegative, Doc("C: a client's change is shortened to this norm; 0: no clipping, no noise")] = 0.0
    noise: Annotated[NonNegative, Doc("z: noise of deviation z·C on every entry of the change")] = 0.0
    delta: Annotated[float, Gt(0), Lt(1), Doc("δ for which the report gives ε")] = 1e-5

    def around(self, algorithm: Algorithm) -> Algorithm:
        """The method with this done to its clients' vectors."""
        return Private(algorithm, self.clip, self.noise) if self.clip else algorithm


@dataclass(frozen=True, eq=False)
class Private:
    """A method whose clients' vectors leave clipped and with noise; the method itself notices nothing."""

    inner: Algorithm
    clip: float
    noise: float
    unfit: ClassVar[Mapping[str, str]] = {}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "uniform"

    def start(self, omega: Vector) -> ServerState:
        return self.inner.start(omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return self.inner.before_clients(state, site, rng)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return self.inner.broadcast(state, client)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Clips all vectors of the reply together, then adds the noise."""
        trained = self.inner.train_client(payload, site, rng)
        schema = self.inner.reply_schema(site.network.layout)
        sent = {name: payload[schema[name].near] for name in sorted(schema)}
        changes = {name: trained.reply[name] - sent[name] for name in sent}
        norm = float(torch.stack([change.double().square().sum() for change in changes.values()]).sum().sqrt())
        scale = min(1.0, self.clip / norm) if norm else 1.0
        deviation = self.noise * self.clip
        reply = {
            name: sent[name] + scale * change + deviation * torch.randn(change.shape, generator=rng)
            for name, change in changes.items()
        }
        return Trained(reply, examples=min(len(site), 1))

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        return self.inner.after_clients(state, updates, site, rng)

    def reply_schema(self, layout: Layout) -> Schema:
        return self.inner.reply_schema(layout)


def unprotected(algorithm: Algorithm) -> list[str]:
    """Which of its replies are no vectors near one that was sent, so that clipping and noise have no meaning there."""
    toy = Layout(("weight",), ((1, 1),), (0, 1), 1)
    return [name for name, expected in algorithm.reply_schema(toy).items() if not expected.near]
