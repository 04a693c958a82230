"""Server-only training, the lower bound: the server trains on its labels, the clients take no part.

ω_{t+1} = ω_t − η ∇ CE(y, f(x))   on the server's labels, and before the first round ``warmup`` epochs more
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Payload, Schema
from fedfew.core.settings import Doc, Natural, NonNegative
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated
from fedfew.training.supervised import train_server


@dataclass(frozen=True)
class NoClients(Federated):
    """A baseline that asks no client."""

    def asks(self, state: ServerState) -> bool:
        return False

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return {}

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        raise FedfewError("E113", "method.name", "it does not train clients")

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        return replace(state, omega=state.sigma), Outcome()

    def reply_schema(self, layout: Layout) -> Schema:
        return {}


@dataclass(frozen=True)
class ServerOnly(NoClients):
    """The baseline every other method must beat; it takes as many server steps a round as they do."""

    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    warmup: Annotated[Natural, Doc("server epochs before the first round; 0: none")] = 0

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        start = state.omega
        if self.warmup:
            start = train_server(self.server, start, state, site, rng, self.lambda_s, self.warmup)
        return replace(state, sigma=train_server(self.server, start, state, site, rng, self.lambda_s))

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return replace(state, sigma=train_server(self.server, state.omega, state, site, rng, self.lambda_s))


SERVER_ONLY = Entry(ServerOnly, aggregator="uniform", asks_clients=False)
