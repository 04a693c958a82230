"""Alternate training, the skeleton of SemiFL and (FL)²: pseudo-labels once a round, clients first, the server last.

ψ = aggregate of the clients that labelled anything;   v ← m v + (ω_t − ψ);   ω_{t+1} = (ω_t − v) trained on D_s
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedfew.core.layout import Payload, Vector
from fedfew.core.network import Network
from fedfew.core.samples import Samples, StrongView
from fedfew.core.settings import Doc, Fraction, Natural, NonNegative
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Updates
from fedfew.methods.entry import Federated
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.sgd import Hooks, LocalSGD, LossOf, descend
from fedfew.training.supervised import train_server
from fedfew.training.updates import aggregate_active, contributions, step_size, with_momentum

PUBLISHED = {"momentum_lasts": True, "shift": 4, "hole": 0.0}
"""How SemiFL and (FL)² train on images of 32×32 pixels."""
CARRIED = "sgd_velocity"
"""The key of the momentum in the server's state and in a client's memory."""


@dataclass(frozen=True)
class Alternate(Federated):
    """How server and clients take turns; SemiFL and (FL)² define what their clients do."""

    server_momentum: Annotated[NonNegative, Doc("m: server momentum, the share of past changes that is kept")] = 0.5
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    warmup: Annotated[Natural, Doc("server epochs before the first round; 0: none, the clients are first")] = 0
    momentum_lasts: Annotated[bool, Doc("server and clients keep their SGD momentum from round to round")] = False
    shift: Annotated[Natural, Doc("largest shift of a client's view in pixels")] = 2
    hole: Annotated[Fraction, Doc("side of the grey square in strong views, as a share of the image; 0: none")] = 0.5
    vote: Voting = PLAIN_VOTE

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The server trains alone, so that the first pseudo-labels are useful; not at all as published (0 epochs)."""
        sigma, kept = state.omega, dict[str, Tensor]()
        if self.warmup:
            sigma, kept = self.train(state.omega, state, site, rng, self.warmup)
        return replace(state, sigma=sigma, extra=state.extra | self.vote.learn(site) | kept)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return replace(state, sigma=state.omega)

    def train(
        self, start: Vector, state: ServerState, site: ServerSite, rng: torch.Generator, epochs: int = 0
    ) -> tuple[Vector, dict[str, Tensor]]:
        """``start`` trained on D_s, and the momentum to keep for the next round."""
        velocity = self.carried(state.extra, site.network, self.server.sgd)
        omega = train_server(self.server, start, state, site, rng, self.lambda_s, epochs, Hooks(velocity=velocity))
        return omega, {} if velocity is None else {CARRIED: velocity.cpu()}

    def carried(self, kept: Mapping[str, Tensor], network: Network, sgd: LocalSGD) -> Tensor | None:
        """The momentum to continue with, where it is kept; a new tensor, because a checkpoint may hold the old one."""
        if not self.momentum_lasts or not sgd.momentum:
            return None
        before = kept.get(CARRIED, torch.zeros(network.layout.trainable))
        return before.to(network.device, copy=True)

    def descend(self, site: ClientSite, lr: float, examples: int, loss_of: LossOf, rng: torch.Generator) -> int:
        """A client's training, with the momentum it has kept."""
        velocity = self.carried(site.memory, site.network, self.client)
        steps = descend(site.network, self.client, lr, examples, loss_of, rng, Hooks(velocity=velocity))
        if velocity is not None:
            site.memory[CARRIED] = velocity.cpu()
        return steps

    def strong(self, site: ClientSite, chosen: Tensor, rng: torch.Generator) -> Samples:
        """Strong views of some of a client's samples."""
        how = site.own_view or StrongView(shift=self.shift, hole=self.hole)
        return site.samples.take(chosen).strong(rng, how)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """σ here is ω_t after the server's training."""
        return {"omega": state.sigma} | step_size(self.client, state) | self.vote.message(state)

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """Aggregate with server momentum, then train on the server's labels."""
        parts = contributions(state, updates, self.client)
        psi, active = aggregate_active(self.aggregator, parts, state.sigma, state.sigma)
        omega, moved = psi.vector, dict[str, Tensor]()
        if active:
            omega, moved = with_momentum(state, omega, self.server_momentum, site.network.layout.trainable)
        trained, kept = self.train(omega, state, site, rng)
        return replace(state, omega=trained, extra=state.extra | moved | kept), Outcome(psi.weights, clients=omega)

    def label_once(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Tensor:
        """Probabilities N×C of the received model on one weak view of each image; leaves it loaded."""
        site.network.load(payload["omega"])
        adjust = self.vote.adjust(payload, site, rng)
        if not len(site):
            return torch.empty(0, site.classes)
        return adjust(site.network.probabilities(site.samples.weak(rng, self.shift)))
