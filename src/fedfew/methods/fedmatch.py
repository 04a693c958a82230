"""FedMatch: the model is a sum θ = σ + ψ; the server trains σ, the clients train ψ.

W. Jeong, J. Yoon, E. Yang, S. J. Hwang: Federated Semi-Supervised Learning with Inter-Client Consistency and
Disjoint Learning. ICLR 2021.

    client k:  ψ ← ψ − η ∇_ψ [ λ_i mean_h KL(p_h ‖ p) + λ_a CE(ŷ, f(strong u)) + λ_l1 Σ|ψ| + λ_l2 Σ(σ − ψ)² ]
               on images with max p ≥ τ; ŷ is the class with most one-hot votes of the client and its helpers
    server:    ψ ← Σ w_k ψ_k,  σ ← σ − η ∇_σ λ_s CE(y, f_{σ+ψ}(x)),  ω = σ + ψ

Labels at clients: client k first trains σ_k on its own labels with ψ held fixed, then ψ_k as above with σ_k held fixed,
and sends both; σ becomes the aggregate of the σ_k of clients with labels, and the server's turn follows if it has any.

σ is constant at a client, so SGD on θ with ψ = θ − σ gives the same gradients. Only entries that changed by more than
``delta`` are sent, with their indices, and entries of ψ no larger than ``l1_threshold`` are set to zero before that.
``fedmatch-lite`` has no helpers: the naive ω = ψ + σ of the paper.

Unlike the official code: σ_k and ψ_k take turns by round, not by batch, and a labeled image counts among the unlabeled
ones too; it is evaluated before the server's turn (``accuracy_clients`` here); a tie of votes goes to the
client's own label, not to the lowest class; the noise image is uniform, not Gaussian; RandAugment's ranges are those of
fedfew.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, one_hot

from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector, nbytes
from fedfew.core.network import Network
from fedfew.core.samples import OwnView, Samples, StrongView
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative
from fedfew.core.types import (
    ClientSite,
    LabeledClientSite,
    Outcome,
    RoundEnd,
    ServerSite,
    ServerState,
    Trained,
    Updates,
)
from fedfew.data.shares import NO_LABELS, ClientLabels
from fedfew.methods.entry import Entry, Federated
from fedfew.methods.fedmatch_helpers import changed_bytes, learned, nearest, patched, restamp, seen
from fedfew.training.label_shift import PLAIN_VOTE, Adjust, Voting, unadjusted
from fedfew.training.sgd import Hooks, descend
from fedfew.training.supervised import train_server, train_supervised
from fedfew.training.updates import Order, Warmup, step_size
from fedfew.training.vote import Ballot

PSI_AT_START = 0.2  # ψ_0 = 0.2·σ_0, as published
STRONG = StrongView(shift=None, layers=6, magnitude=(2, 5), identity=False, hole=None)
"""FedMatch's strong view: six operations of 13 (all but the identity), each at a level below M ~ U{2..5}."""


@dataclass(frozen=True)
class FedMatch(Federated):
    """FedMatch with its published settings."""

    lambda_s: Annotated[NonNegative, Doc("λ_s: weight of the labels' cross-entropy, at server and clients")] = 10.0
    lambda_i: Annotated[NonNegative, Doc("λ_i: weight of the consistency with the helpers")] = 1e-2
    lambda_a: Annotated[NonNegative, Doc("λ_a: weight of the pseudo-label cross-entropy")] = 1e-2
    lambda_l2: Annotated[NonNegative, Doc("λ_l2: weight of Σ(σ − ψ)²")] = 10.0
    lambda_l1: Annotated[NonNegative, Doc("λ_l1: weight of Σ|ψ|")] = 1e-5
    threshold: Annotated[Fraction, Doc("τ: an image is used where its largest probability is at least this")] = 0.75
    helpers: Annotated[Natural, Doc("H: models of similar clients sent along; 0 is fedmatch-lite")] = 2
    interval: Annotated[Count, Doc("helpers are sent every so many rounds")] = 10
    delta: Annotated[NonNegative, Doc("entries changed by no more than this are not sent")] = 1e-5
    l1_threshold: Annotated[NonNegative, Doc("entries of a client's ψ no larger than this become zero")] = 1e-5
    order: Order = "after"
    warmup: Warmup = 0
    vote: Voting = PLAIN_VOTE
    client_labels: ClientLabels = NO_LABELS

    def start(self, omega: Vector) -> ServerState:
        """σ_0 = ω_0, ψ_0 = 0.2·σ_0."""
        psi = PSI_AT_START * omega
        zeros = torch.zeros(len(omega), dtype=torch.int32)
        extra = {"psi": psi, "wire_sigma": omega, "wire_psi": psi, "stamp_sigma": zeros, "stamp_psi": zeros}
        return ServerState(0, omega + psi, omega, extra=extra)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The values of σ and ψ that clients get are updated; with order = "before", σ is trained first."""
        if self.order == "before":
            state = replace(state, sigma=self.train_sigma(state, state.extra["psi"], site, rng))
        return self.publish(state, site)

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """σ is trained before the clients get it."""
        sigma = self.train_sigma(state, state.extra["psi"], site, rng, self.warmup)
        return self.publish(replace(state, sigma=sigma), site)

    def publish(self, state: ServerState, site: ServerSite) -> ServerState:
        """σ and ψ as clients will know them."""
        extra = restamp(state, {"sigma": state.sigma, "psi": state.extra["psi"]}, self.delta)
        return replace(state, extra=extra | self.vote.learn(site))

    def train_sigma(
        self, state: ServerState, psi: Vector, site: ServerSite, rng: torch.Generator, epochs: int = 0
    ) -> Vector:
        """σ trained on D_s with ψ held fixed; an untouched entry keeps its bits."""
        start = state.sigma + psi
        theta = train_server(self.server, start, state, site, rng, self.lambda_s, epochs)
        return state.sigma + (theta - start)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """σ and ψ as clients know them, and in rounds 9, 19, … the helpers' models for a client seen before."""
        payload = {"sigma": state.extra["wire_sigma"], "psi": state.extra["wire_psi"]}
        payload |= step_size(self.client, state)
        if self.helpers and (state.round + 1) % self.interval == 0:
            for i, vector in enumerate(nearest(state, client, self.helpers)):
                payload[f"helper{i}"] = vector
        return payload | self.vote.message(state)

    def bytes_down(self, state: ServerState, client: int, payload: Payload) -> int:
        """Bytes to send: the entries changed since the client's last answer, with indices; helpers in full."""
        rest = {name: t for name, t in payload.items() if name not in ("sigma", "psi")}
        return changed_bytes(state, client) + nbytes(rest)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """ψ ← ψ − η∇_ψ, reported as the entries that changed."""
        network, ballot = site.network, Ballot(len(site))
        psi = payload["psi"]
        votes_of_helpers = self._helper_probabilities(payload, site)
        sigma = self._own_sigma(payload, site, rng)
        start = sigma + psi
        network.load(start)
        adjust = self.vote.adjust(payload, site, rng)
        held = sigma[: network.layout.trainable].to(network.device)

        def loss_of(indices: Tensor) -> Tensor | None:
            helped = votes_of_helpers[:, indices] if votes_of_helpers is not None else None
            loss, labels, keep = self.loss(network, site.samples.take(indices), helped, rng, adjust, site.own_view)
            ballot.record(indices, labels, keep)
            return loss

        def penalty(net: Network) -> None:
            """gradient += λ_l1 sign(ψ) + 2 λ_l2 (ψ − σ), with ψ = θ − σ."""
            n = net.layout.trainable
            psi_now = net.vector[:n] - held
            net.gradient[:n].add_(psi_now.sign(), alpha=self.lambda_l1)
            net.gradient[:n].add_(psi_now - held, alpha=2 * self.lambda_l2)

        steps = descend(network, self.client, float(payload["lr"]), len(site), loss_of, rng, Hooks(penalty))
        after = network.snapshot()
        change = torch.where((after - sigma).abs() > self.l1_threshold, after - start, -psi)
        reply = self._sparse(change, "")
        if self.client_labels.each:
            reply |= self._sparse(sigma - payload["sigma"], "sigma_")
        return Trained(reply, {"coverage": ballot.coverage, "steps": float(steps)}, ballot.votes)

    def _own_sigma(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Vector:
        """σ as sent, trained on the client's own labels where it has any; ψ is held fixed."""
        sigma = payload["sigma"]
        if not isinstance(site, LabeledClientSite):
            return sigma
        start, sgd = sigma + payload["psi"], replace(self.client, batch=self.client_labels.batch)
        theta, _ = train_supervised(
            site.network, start, site.labeled, replace(self.server, sgd=sgd, annealing="none"), float(payload["lr"]),
            rng, scale=self.lambda_s,
        )  # fmt: skip
        return sigma + (theta - start)

    def _sparse(self, change: Vector, prefix: str) -> dict[str, Tensor]:
        """The entries of a change that are sent."""
        index = (change.abs() > self.delta).nonzero().squeeze(1)
        return {f"{prefix}index": index.to(torch.int32), f"{prefix}change": change[index]}

    def _helper_probabilities(self, payload: Payload, site: ClientSite) -> Tensor | None:
        """H×N×C softmax outputs of the helpers on the client's images: they do not change during the round."""
        outputs = []
        for name in sorted(name for name in payload if name.startswith("helper")):
            site.network.load(payload["sigma"] + payload[name])
            outputs.append(site.network.probabilities(site.samples))
        return torch.stack(outputs) if outputs else None

    def loss(
        self,
        network: Network,
        samples: Samples,
        helped: Tensor | None,
        rng: torch.Generator,
        adjust: Adjust = unadjusted,
        view: OwnView | None = None,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """λ_i mean_h KL(p_h ‖ p) + λ_a CE(ŷ, f(strong u)) on the confident images, ŷ and the mask."""
        with torch.no_grad():
            own = adjust(network(samples).softmax(1))
        keep = own.max(1).values >= self.threshold
        ballots = one_hot(own.argmax(1), own.shape[1])
        if helped is not None:
            ballots = ballots + one_hot(adjust(helped).argmax(2), own.shape[1]).sum(0).to(ballots.device)
        # a tie goes to the client's own label: half a vote more than the helpers'
        labels = (2 * ballots + one_hot(own.argmax(1), own.shape[1])).argmax(1)
        if not keep.any():
            return None, labels, keep
        chosen = keep.cpu()
        loss = self.lambda_a * cross_entropy(network(samples.take(keep).strong(rng, view or STRONG)), labels[keep])
        if helped is not None and self.lambda_i:
            log_p = network(samples.take(keep)).log_softmax(1)
            targets = helped[:, chosen].to(log_p.device)
            divergence = torch.stack([kl_div(log_p, target, reduction="batchmean") for target in targets]).mean()
            loss = loss + self.lambda_i * divergence
        return loss, labels, keep

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """ψ ← aggregate of the clients' ψ_k; the library of helpers gets their models."""
        sent = state.extra["wire_psi"]
        parts = patched(state, updates, sent)
        psi = self.aggregator(parts, sent, state.sigma)
        extra = state.extra | {"psi": psi.vector} | seen(state, parts)
        if self.helpers:
            extra |= learned(parts, state.sigma, site)
        state = replace(state, sigma=self._joint_sigma(state, updates))
        sigma = state.sigma if self.order == "before" else self.train_sigma(state, psi.vector, site, rng)
        made, omega = state.sigma + psi.vector, sigma + psi.vector
        return replace(state, omega=omega, sigma=sigma, extra=extra), Outcome(psi.weights, clients=made)

    def _joint_sigma(self, state: ServerState, updates: Updates) -> Vector:
        """σ, or the aggregate of the σ_k of clients with labels."""
        labeled = [u for u in updates if self.client_labels.each and len(u.reply["sigma_index"])]
        if not labeled:
            return state.sigma
        sent = state.extra["wire_sigma"]
        return self.aggregator(patched(state, labeled, sent, "sigma_"), sent, state.sigma).vector

    def reply_schema(self, layout: Layout) -> Schema:
        """{"index", "change"}: as many entries as changed; of σ too where clients hold labels."""
        size, schema = layout.size, {}
        for prefix in ("", "sigma_") if self.client_labels.each else ("",):
            schema[f"{prefix}index"] = Expected((None,), torch.int32, limit=size, index=True, group=prefix)
            schema[f"{prefix}change"] = Expected((None,), limit=size, delta=True, group=prefix, base=("sigma", "psi"))
        return schema


UNFIT = {
    "fltrust": "the clients send ψ and the server trains σ: two parts of a sum, whose directions say nothing "
    "about each other",
    "fednova": "λ_l2 pulls ψ to σ at every step, so the number of steps says little about how far a client moved",
    "median": "only entries changed by more than `delta` are sent, so most entries of a coordinate-wise median "
    "would be the old value and the clients' work would be lost",
    "trimmed-mean": "as for the median: unchanged entries would outvote the clients' work",
}
FEDMATCH = Entry(FedMatch, aggregator="uniform", unfit=UNFIT, strong_views=True)
FEDMATCH_LITE = Entry(FedMatch, {"helpers": 0, "lambda_i": 0.0}, aggregator="uniform", unfit=UNFIT, strong_views=True)
