"""fedfew: our own method. Non-IID clients know something the server does not, their own class mix, and label with it.

    server:    ω_t is trained on D_s until it is worth asking (``warmup``), and after every aggregation
    client k:  q_i = mean of A views of f_ω(u_i);   r_i, π_k = label-shift EM(q, π_server) at temperature T
               ŷ_i = argmax r_i, kept where max r_i ≥ τ;   labels are made once, with the model as received
               ψ_k ← ω_t − η ∇ CE(ŷ, f(strong u))  on the kept images, for E epochs
    next:      ψ = Σ w_k ψ_k over the clients that kept labels;   ω_{t+1} = ψ trained on D_s

A. P. Dempster et al. 1977 (EM); M. Saerens et al. 2002 (label shift); E. Diao et al. 2022, SemiFL (labels once with the
global model, server trains after the aggregation); K. Sohn et al. 2020, FixMatch (strong views). New here is the
combination: the EM estimate at every client of a federation, in every round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.algorithms.augment import strong, weak
from fedfew.algorithms.exchange import contributions, model_reply, scalar
from fedfew.algorithms.fedavg import NO_WAY_TO_TRUST
from fedfew.algorithms.label_shift import em_prior
from fedfew.algorithms.local import LocalSGD, Supervised, descend, train_supervised
from fedfew.core.layout import Layout, Vector
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.core.types import Aggregator, ClientSite, ClientUpdate, Payload, Schema, ServerSite, ServerState, Trained


@dataclass(frozen=True)
class FedFew:
    """Labels by the client's own class mix, once a round; the server trains last."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    views: Annotated[Count, Doc("A: weak views of an image whose mean probabilities are voted on")] = 3
    threshold: Annotated[Fraction, Doc("τ: a label counts from this adjusted probability on")] = 0.9
    temperature: Annotated[Positive, Doc("T: above 1 for an over-confident model")] = 1.5
    steps: Annotated[Natural, Doc("EM iterations; 0 votes without the client's own class mix")] = 30
    concentration: Annotated[
        NonNegative, Doc("strength, in images, of the pull of π_k towards the server's shares")
    ] = 5.0
    warmup: Annotated[Natural, Doc("server epochs before the first round")] = 50
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    unfit: ClassVar[Mapping[str, str]] = {"fltrust": NO_WAY_TO_TRUST}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "fedfreq"

    def start(self, omega: Vector) -> ServerState:
        return ServerState(0, omega, omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """Before the first round the server trains alone, so that the first labels are worth something."""
        counts = torch.bincount(site.labeled.labels, minlength=site.classes).float()
        extra = {"prior": counts / counts.sum()}
        if state.round or not self.warmup:
            return replace(state, sigma=state.omega, extra=extra)
        long = replace(self.server, sgd=replace(self.server.sgd, epochs=self.warmup))
        return replace(state, sigma=self._train(state.omega, long, state, site, rng), extra=extra)

    def _train(
        self, start: Vector, how: Supervised, state: ServerState, site: ServerSite, rng: torch.Generator
    ) -> Vector:
        lr = self.server.sgd.rate(state.round, state.validation)
        trained, _ = train_supervised(
            site.network, start, site.labeled, how, lr, rng, scale=self.lambda_s, flips=site.flips
        )
        return trained

    def broadcast(self, state: ServerState, client: int) -> Payload:
        lr = scalar(self.client.rate(state.round, state.validation))
        return {"omega": state.sigma, "prior": state.extra["prior"], "lr": lr}

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Label once with ω and the client's own class mix, then train on strong views of what was kept."""
        network = site.network
        network.load(payload["omega"])
        votes = self.label(site, payload["prior"], rng)
        kept = (votes >= 0).nonzero().squeeze(1)

        def loss_of(indices: Tensor) -> Tensor:
            chosen = kept[indices]
            views = strong(site.images[chosen], rng, flips=site.flips)
            return cross_entropy(network(views), votes[chosen].to(network.device))

        steps = descend(network, self.client, float(payload["lr"]), len(kept), loss_of, rng)
        coverage = len(kept) / max(len(site), 1)
        return Trained({"psi": network.snapshot()}, {"coverage": coverage, "steps": float(steps)}, votes)

    def label(self, site: ClientSite, prior: Tensor, rng: torch.Generator) -> Tensor:
        """ŷ for every image, −1 where it is not kept."""
        if not len(site):
            return torch.empty(0, dtype=torch.int64)
        outputs = [site.network.probabilities(weak(site.images, rng, site.flips)) for _ in range(self.views)]
        adjusted, _ = em_prior(torch.stack(outputs).mean(0), prior, self.temperature, self.steps, self.concentration)
        confidence, labels = adjusted.max(1)
        return torch.where(confidence >= self.threshold, labels, -1)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        """Aggregate those that learned something, then train on the server's labels."""
        learned = [u for u in updates if u.metrics.get("steps", 1.0) > 0]
        psi, weights = state.sigma, {}
        if learned:
            aggregate = self.aggregator(contributions(state, learned), state.sigma, state.sigma)
            psi, weights = aggregate.vector, aggregate.weights
        return replace(state, omega=self._train(psi, self.server, state, site, rng), weights=weights)

    def reply_schema(self, layout: Layout) -> Schema:
        return model_reply(layout)
