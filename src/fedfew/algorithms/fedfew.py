"""fedfew, our own method: clients label once a round, by what only they know, their class mix; the server trains last.

    server:    ω_0 is trained on D_s for ``warmup`` epochs, and every ω_t after its aggregation
    client k:  q_i = mean of A weak views of f_ω(u_i);   r_i, π_k = label-shift EM(q, π_server) at temperature T
               ŷ_i = argmax r_i, kept where max r_i ≥ τ;   labels are made once, with the model as received
               ψ_k ← ω_t − η ∇ CE(ŷ, f(strong u))  on the kept images
    next:      ψ = Σ w_k ψ_k over the clients that kept labels;   ω_{t+1} = ψ trained on D_s

Built on M. Saerens et al. 2002 (label-shift EM), K. Sohn et al. 2020, FixMatch (strong views) and E. Diao et al. 2022,
SemiFL (labels once with the global model, server last). Many small local steps matter: with batches of 16 instead of 64
the same labels are worth several times as much. ``steps = 0`` votes without the client's class mix, which is right for
clients that are alike; with very skewed clients (μ ≤ 0.1) long local training pulls the clients apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.algorithms.augment import strong, weak
from fedfew.algorithms.exchange import active, contributions, model_reply, scalar
from fedfew.algorithms.fedavg import NO_WAY_TO_TRUST
from fedfew.algorithms.label_shift import em_prior
from fedfew.algorithms.local import LocalSGD, Supervised, descend, train_server
from fedfew.core.layout import Layout, Vector
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.core.types import Aggregator, ClientSite, ClientUpdate, Payload, Schema, ServerSite, ServerState, Trained


@dataclass(frozen=True)
class FedFew:
    """Labels once a round, by the client's own class mix if wanted; the server trains last."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    views: Annotated[Count, Doc("A: weak views of an image whose mean probabilities are voted on")] = 3
    threshold: Annotated[Fraction, Doc("τ: a label counts from this (adjusted) probability on")] = 0.9
    temperature: Annotated[Positive, Doc("T of the probabilities; above 1 for an over-confident model")] = 1.0
    steps: Annotated[Natural, Doc("EM iterations for the client's own class mix; 0: the server's mix")] = 0
    concentration: Annotated[NonNegative, Doc("strength, in images, of π_k's pull towards the server's mix")] = 5.0
    warmup: Annotated[Natural, Doc("server epochs before the first round")] = 300
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    unfit: ClassVar[Mapping[str, str]] = {"fltrust": NO_WAY_TO_TRUST}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "fedfreq"

    def start(self, omega: Vector) -> ServerState:
        return ServerState(0, omega, omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """Before the first round the server trains alone, so that the first labels are worth something."""
        counts = torch.bincount(site.labeled.labels, minlength=site.classes).float()
        sigma = state.omega
        if state.round == 0:
            alone = replace(self.server, sgd=replace(self.server.sgd, epochs=self.warmup))
            sigma = train_server(alone, sigma, state, site, rng, self.lambda_s)
        return replace(state, sigma=sigma, extra={"prior": counts / counts.sum()})

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """ω_t as the server has trained it, its class mix, and the round's step size."""
        lr = scalar(self.client.rate(state.round, state.validation))
        return {"omega": state.sigma, "prior": state.extra["prior"], "lr": lr}

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Label once with ω, then train on strong views of what was kept."""
        network = site.network
        network.load(payload["omega"])
        votes = self.label(site, payload["prior"], rng)
        kept = (votes >= 0).nonzero().squeeze(1)

        def loss_of(indices: Tensor) -> Tensor:
            chosen = kept[indices]
            views = strong(site.images[chosen], rng, flips=site.flips)
            return cross_entropy(network(views), votes[chosen].to(network.device))

        steps = descend(network, self.client, float(payload["lr"]), len(kept), loss_of, rng)
        metrics = {"coverage": len(kept) / max(len(site), 1), "steps": float(steps)}
        return Trained({"psi": network.snapshot()}, metrics, votes)

    def label(self, site: ClientSite, prior: Tensor, rng: torch.Generator) -> Tensor:
        """ŷ for every image, −1 where it is not kept."""
        if not len(site):
            return torch.empty(0, dtype=torch.int64)
        outputs = [site.network.probabilities(weak(site.images, rng, site.flips)) for _ in range(self.views)]
        mean = torch.stack(outputs).mean(0)
        adjusted, _ = em_prior(mean, prior, self.temperature, self.steps, self.concentration)
        confidence, labels = adjusted.max(1)
        return torch.where(confidence >= self.threshold, labels, -1)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        """Aggregate those that learned something, then train on the server's labels."""
        lr = self.client.rate(state.round, state.validation)
        learned = active(contributions(state, updates, work=lambda steps: self.client.work(steps, lr)))
        psi, weights = state.sigma, {}
        if learned:
            aggregate = self.aggregator(learned, state.sigma, state.sigma)
            psi, weights = aggregate.vector, aggregate.weights
        omega = train_server(self.server, psi, state, site, rng, self.lambda_s)
        return replace(state, omega=omega, weights=weights)

    def reply_schema(self, layout: Layout) -> Schema:
        return model_reply(layout)
