"""CBAFed: pseudo-labels fixed for a round, a threshold for each class by how often it is trained on, mixed models.

M. Li, Q. Li, Y. Wang: Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning. CVPR 2023.

    thresholds  P_c = C/10 · n_c / Σ n,   n_c = labels of class c + the last round's pseudo-labels of class c
                τ_c = min(P_c + τ − std P, highest)
    client k:   p = f_ω(v),  v = weak u,  once;   ŷ = argmax p  where  max p > τ_ŷ,
                else the second class of p, where P of that is below ``tail``;   else none
                ψ_k = ω_t − η ∇ CE(ŷ, f(v));   sends ψ_k and its pseudo-labels by class, n_k in all
    server:     σ = ω_t − η ∇ CE(y, f(x));   every 5 passes  σ ← .8 σ' + .2 σ,  σ' the σ of the last time
    round:      ω_{t+1} = (n_s σ + Σ n_k ψ_k) / (n_s + Σ n_k);   every 5 rounds  ω ← (ω' + ω) / 2,  ω' the ω of the last

Published, one or some clients have all the labels. Here the server has them and takes the place of such a client: it
trains beside the clients, from the same ω, and weighs n_s = ``label_weight`` · its labels. The long training on
labels before the first round is ``warmup``; ω' is at first what it gives. Published, all clients take part in every
round; here n_c counts the clients that answered in the last one.

Equations and constants are read from the official code (``highest`` is .9 there for SVHN and skin, ``label_weight`` 10
for skin). Unlike there, momentum starts anew in every round.

Counts by class show a client's class mix to the server; with other methods that send models, real sites keep them to
themselves. Noise on the model does not cover them, so ``[privacy]`` is refused.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector
from fedfew.core.settings import Count, Doc, Fraction, NonNegative, Positive
from fedfew.core.types import ClientSite, ClientUpdate, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.sgd import Hooks, ResidualConnection, descend
from fedfew.training.supervised import train_server
from fedfew.training.updates import Warmup, aggregate_active, check_outputs, contributions, outputs, step_size


@dataclass(frozen=True)
class CBAFed(Federated):
    """CBAFed with the settings of its official code."""

    threshold: Annotated[Fraction, Doc("τ: base of the class thresholds; frequent classes get a higher one")] = 0.84
    highest: Annotated[Fraction, Doc("upper bound of every class threshold")] = 0.95
    tail: Annotated[
        NonNegative,
        Doc("an unsure image takes its second class if that has less than this share of the labels; 0: never"),
    ] = 0.03
    label_weight: Annotated[Positive, Doc("a label of the server counts as this many pseudo-labels in the mean")] = 1.0
    server_residual: Annotated[Fraction, Doc("share of its earlier model in the server's own; 0: none")] = 0.8
    server_interval: Annotated[
        Count, Doc("the server mixes its model with the earlier one after this many passes over its labels")
    ] = 5
    global_residual: Annotated[Fraction, Doc("share of the earlier global model in the new one; 0: none")] = 0.5
    global_interval: Annotated[Count, Doc("the global model is mixed with the earlier one after this many rounds")] = 5
    warmup: Warmup = 0
    vote: Voting = PLAIN_VOTE

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """ω_0 is trained on D_s, before the server's first turn; the labels alone set P."""
        check_outputs(site, "cbafed")
        omega = self.train(state.omega, state, site, rng, self.warmup)
        extra = {"earlier": omega, "shares": shares(label_counts(site))} | self.vote.learn(site)
        return self.before_clients(replace(state, omega=omega, extra=extra), site, rng)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """σ ← ω_t, trained on D_s."""
        return replace(state, sigma=self.train(state.omega, state, site, rng))

    def train(
        self, start: Vector, state: ServerState, site: ServerSite, rng: torch.Generator, epochs: int = 0
    ) -> Vector:
        """``start`` trained on D_s with the residual connection."""
        residual = ResidualConnection(torch.zeros_like(site.network.vector), self.server_residual, self.server_interval)
        return train_server(self.server, start, state, site, rng, epochs=epochs, hooks=Hooks(residual=residual))

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """ω_t, this round's step size, and P."""
        payload = {"omega": state.omega, "shares": state.extra["shares"]} | step_size(self.client, state)
        return payload | self.vote.message(state)

    def thresholds(self, shares: Tensor) -> Tensor:
        """τ_c = min(P_c + τ − std P, highest): a class that is rarely trained on has a lower threshold."""
        return (shares + self.threshold - shares.std()).clamp_max(self.highest)

    def labels(self, probabilities: Tensor, shares: Tensor) -> Tensor:
        """ŷ from probabilities N×C, −1 where an image has none."""
        confidence, best = probabilities.max(1)
        second = probabilities.scatter(1, best[:, None], -1.0).argmax(1)
        sure = confidence > self.thresholds(shares)[best]
        return torch.where(sure, best, torch.where(shares[second] < self.tail, second, -1))

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """ψ_k ← ω_t, trained on views whose labels do not change until the round's end."""
        network = site.network
        network.load(payload["omega"])
        adjust = self.vote.adjust(payload, site, rng)
        views = site.samples.weak(rng)
        p = adjust(network.probabilities(views)) if len(site) else torch.empty(0, site.classes)
        votes = self.labels(p, payload["shares"])
        fixed = (votes >= 0).nonzero().squeeze(1)

        def loss_of(indices: Tensor) -> Tensor:
            chosen = fixed[indices]
            return cross_entropy(network(views.take(chosen)), votes[chosen].to(network.device))

        steps = descend(network, self.client, float(payload["lr"]), len(fixed), loss_of, rng)
        counts = torch.bincount(votes[fixed], minlength=site.classes).float()
        metrics = {"coverage": len(fixed) / max(len(site), 1), "steps": float(steps)}
        return Trained({"psi": network.snapshot(), "counts": counts}, metrics, votes)

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """The mean of the server's model and the clients', mixed with an earlier one; and P for the next round."""
        counts = [trusted_counts(update) for update in updates]
        labeled = [replace(u, examples=round(float(n.sum()))) for u, n in zip(updates, counts, strict=True)]
        parts = contributions(state, labeled, self.client)
        psi, active = aggregate_active(self.aggregator, parts, state.omega, state.sigma)
        own = self.label_weight * len(site.labeled)
        share = own / (own + sum(part.examples for part in active)) if active else 1.0
        omega = torch.lerp(psi.vector, state.sigma, share)
        extra = state.extra | {"shares": shares(sum(counts, label_counts(site)))}
        if state.round and state.round % self.global_interval == 0:
            omega = torch.lerp(omega, state.extra["earlier"], self.global_residual)
            extra |= {"earlier": omega}
        bounds = self.thresholds(extra["shares"])
        metrics = {"server_share": share, "lowest_threshold": float(bounds.min()), "threshold": float(bounds.mean())}
        return replace(state, omega=omega, extra=extra), Outcome(psi.weights, metrics, psi.vector)

    def reply_schema(self, layout: Layout) -> Schema:
        """{"psi", "counts"}: a model, and one number for each class."""
        return super().reply_schema(layout) | {"counts": Expected((outputs(layout),), rule=miscounted)}


def miscounted(counts: Tensor, payload: Payload, examples: int) -> str:
    """Why these are not counts of pseudo-labels: they are whole, and each image has one at most."""
    possible = bool((counts >= 0).all() and (counts == counts.round()).all())
    return "" if possible and float(counts.sum()) <= examples else f"its pseudo-labels do not count {examples} images"


def shares(counts: Tensor) -> Tensor:
    """P_c = C/10 · n_c / Σ n: 0.1 for each class where all are alike, however many there are."""
    return counts * (len(counts) / 10 / counts.sum().clamp_min(1.0))


def label_counts(site: ServerSite) -> Tensor:
    return torch.bincount(site.labeled.labels, minlength=site.classes).double()


def trusted_counts(update: ClientUpdate) -> Tensor:
    """A client's pseudo-labels by class, scaled down where they are more than the images it is credited with."""
    counts = update.reply["counts"].double().clamp_min(0)
    return counts * min(1.0, update.examples / max(float(counts.sum()), 1.0))


CBAFED = Entry(CBAFed)
