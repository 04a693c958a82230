"""fedfew, our own method: clients pseudo-label once a round, using their own class mix; the server trains last.

    server:    ω_0 is trained on D_s for ``warmup`` epochs, and every aggregate after it
    client k:  q_i = mean of A weak views of f_σ(u_i);   r_i, π_k = label-shift EM(q, π_server) at temperature T
               T as given, or such that on average max q^(1/T) is ω_t's accuracy on the validation images
               ŷ_i = argmax r_i or (soft) r_i, kept where max r_i ≥ τ;   made once, with the model as received
               ψ_k ← σ_t − η ∇ CE(ŷ, softmax(z(strong u) + κ log(π_k/π_server)))  on the kept images, z: the logits
                         − η ∇ w ‖f(weak u + ε) − f(weak u + ε′)‖²                 on all images, ε: noise
    next:      ψ = Σ w_k ψ_k over the clients that kept labels;   σ_{t+1} = ψ trained on D_s
               ω_{t+1} = a ω_t + (1 − a) σ_{t+1}

Built on M. Saerens et al. 2002 (label-shift EM), K. Sohn et al. 2020, FixMatch (strong views) and E. Diao et al. 2022,
SemiFL (labels once with the global model, server last). Many small local steps matter: with batches of 16 instead of 64
the same labels are worth several times as much. ``steps = 0`` leaves π_k = π_server, right for clients that are
alike. With very skewed clients the class mix is used twice: it improves the labels, and in the loss it prevents
what a client with two classes would otherwise learn first, that there are no others (A. K. Menon et al. 2021, logit
adjustment); a mean over rounds evens out the differences between cohorts. Confident labels teach what the model nearly
knows; that two noisy views agree (S. Laine and T. Aila 2017, Π-model) also uses the images it is not sure of. On a
frozen backbone a config that names ``fedfew`` and none of its settings gets ``fedmoments``, which is far better there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.samples import STANDARD, joined
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated, Scenario
from fedfew.methods.fedavg import STARTS_FROM_SERVER
from fedfew.objectives.consistency import disagreement
from fedfew.training.label_shift import calibrated_temperature, em_prior, log_ratio
from fedfew.training.sgd import descend
from fedfew.training.supervised import train_server
from fedfew.training.updates import aggregate_active, contributions, scalar, step_size

NOISE = 0.1
"""Deviation of the noise ε, of pixels in [0, 1] or of the features' size."""


@dataclass(frozen=True)
class FedFew(Federated):
    """Pseudo-labels once a round, with the client's own class mix if wanted; the server trains last."""

    views: Annotated[Count, Doc("A: weak views of an image whose mean probabilities give its label")] = 3
    threshold: Annotated[Fraction, Doc("τ: a pseudo-label is used where its probability is at least this")] = 0.9
    soft: Annotated[bool, Doc("train on probabilities instead of the likeliest class")] = False
    temperature: Annotated[NonNegative, Doc("T: above 1 for an over-confident model; 0: by validation images")] = 1.0
    steps: Annotated[Natural, Doc("EM steps to estimate a client's own class mix; 0: it assumes the server's")] = 0
    concentration: Annotated[NonNegative, Doc("the server's class mix counts as this many images in a client's")] = 5.0
    correction: Annotated[NonNegative, Doc("κ: how much of the client's class mix is added to its logits")] = 1.0
    consistency: Annotated[NonNegative, Doc("w: weight of the agreement between two noisy views; 0: off, faster")] = 0.0
    average: Annotated[Fraction, Doc("a: share of the last ω in the new one, a mean over the rounds; 0: none")] = 0.0
    teacher: Annotated[
        Literal["current", "start"], Doc("which model labels the images: each round's, or the first one")
    ] = "current"
    warmup: Annotated[Natural, Doc("epochs the server trains before the first round")] = 300
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The server trains alone, so that the first pseudo-labels are useful; and notes its class mix."""
        sigma = state.omega
        if self.warmup:
            sigma = train_server(self.server, sigma, state, site, rng, self.lambda_s, self.warmup)
        counts = torch.bincount(site.labeled.labels, minlength=site.classes).float()
        teacher = {"teacher": sigma} if self.teacher == "start" else {}
        return replace(state, sigma=sigma, extra=state.extra | {"prior": counts / counts.sum()} | teacher)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return replace(state, sigma=state.extra.get("sigma", state.omega))

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """σ_t, the server's class mix, and the round's step size."""
        message = {"omega": state.sigma, "prior": state.extra["prior"]} | step_size(self.client, state)
        if self.teacher == "start" and state.participation:  # in the first round it is ω itself
            message["teacher"] = state.extra["teacher"]
        if not self.temperature and state.validation and state.validation[-1]:
            message["accuracy"] = scalar(state.validation[-1])
        return message

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Label once with σ_t, then train on strong views of the kept images, and on the agreement of all."""
        network = site.network
        network.load(payload.get("teacher", payload["omega"]))
        adjusted, mix = self.label(site, payload, rng)
        network.load(payload["omega"])
        confidence, labels = adjusted.max(1)
        votes = torch.where(confidence >= self.threshold, labels, -1)
        targets = (adjusted if self.soft else votes).to(network.device)
        kept = (votes >= 0).nonzero().squeeze(1)
        used = torch.arange(len(site)) if self.consistency else kept
        samples, strong = site.samples, site.own_view or STANDARD
        shift = self.correction * log_ratio(mix, payload["prior"]).to(network.device)

        def loss_of(indices: Tensor) -> Tensor:
            chosen = used[indices]
            if not self.consistency:
                return cross_entropy(network(samples.take(chosen).strong(rng, strong)) + shift, targets[chosen])
            views = [samples.take(chosen).weak(rng).noisy(NOISE, rng) for _ in range(2)]
            if len(sure := chosen[votes[chosen] >= 0]):
                views.append(samples.take(sure).strong(rng, strong))
            one, other, *labeled = network(joined(views)).split(len(chosen))
            loss = self.consistency * disagreement(one.softmax(1), other.softmax(1))
            for outputs in labeled:
                loss = loss + len(sure) / len(chosen) * cross_entropy(outputs + shift, targets[sure])
            return loss

        steps = descend(network, self.client, float(payload["lr"]), len(used), loss_of, rng)
        metrics = {"coverage": len(kept) / max(len(site), 1), "steps": float(steps)}
        return Trained({"psi": network.snapshot()}, metrics, votes)

    def label(self, site: ClientSite, payload: Payload, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """r, the client's class probabilities for every image (N×C), and its class mix π_k."""
        if not len(site):
            return torch.empty(0, site.classes), payload["prior"]
        outputs = [site.network.probabilities(site.samples.weak(rng)) for _ in range(self.views)]
        mean, temperature = torch.stack(outputs).mean(0), self.temperature
        if not temperature:
            temperature = calibrated_temperature(mean, float(payload["accuracy"])) if "accuracy" in payload else 1.0
        return em_prior(mean, payload["prior"], temperature, self.steps, self.concentration)

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """Aggregate the clients that learned something, then train on the server's labels."""
        parts = contributions(state, updates, self.client)
        psi, _ = aggregate_active(self.aggregator, parts, state.sigma, state.sigma)
        sigma = train_server(self.server, psi.vector, state, site, rng, self.lambda_s)
        outcome = Outcome(psi.weights, clients=psi.vector)
        if not self.average:
            return replace(state, omega=sigma), outcome
        before = state.omega if "sigma" in state.extra else state.sigma  # the warm-up's result counts as ω_0
        omega = self.average * before + (1 - self.average) * sigma
        return replace(state, omega=omega, extra=state.extra | {"sigma": sigma}), outcome


def refuse(method: FedFew, scenario: Scenario) -> Iterator[FedfewError]:
    """A temperature of 0 needs validation images; the client's class mix has its own settings here."""
    if not method.temperature and scenario.validation == 0:
        problem = "a temperature of 0 is calibrated on validation images, but dataset.validation is 0"
        yield FedfewError("E113", "method.temperature", problem, "Set dataset.validation, or give a temperature")
    if scenario.class_prior != "server":
        problem = "method fedfew already has this estimate, as method.steps"
        yield FedfewError("E113", "vote.prior", problem, "Set method.steps instead")


FEDFEW = Entry(
    FedFew,
    aggregator="fedfreq",
    unfit=STARTS_FROM_SERVER,
    on_features="fedmoments",
    strong_views=True,
    refuse=refuse,
)
