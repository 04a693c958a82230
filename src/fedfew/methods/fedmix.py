"""FedMix: server and clients train from the same ω_t, then three models are mixed.

Z. Zhang, S. Ma, J. Nie, Y. Wu, Q. Yan, X. Xu, D. Niyato: Semi-Supervised Federated Learning with non-IID Data:
Algorithm and System Design. 2021. Algorithm 1:

    σ_{t+1}   = ω_t − η ∇ λ_s CE(y, f(x))                                                  on the server's labels
    ψ^k_{t+1} = ω_t − η ∇ [λ_2 ‖f(π_1 u) − f(π_2 u)‖² + λ_1 CE(ŷ, f(u)) + λ_L1 ‖σ − ψ‖²]   on client k's images
    ω_{t+1}   = α Σ_k w_k ψ^k_{t+1} + β σ_{t+1} + γ ω_t                                    w_k by FedFreq

A client with labels of its own, which the paper does not have, adds λ_s CE(y, f(x)) on them to every batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.network import Network
from fedfew.core.samples import Samples, joined
from fedfew.core.settings import Doc, Fraction, NonNegative
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.data.shares import NO_LABELS, ClientLabels
from fedfew.methods.entry import Entry, Federated
from fedfew.training.label_shift import PLAIN_VOTE, Adjust, Voting, unadjusted
from fedfew.training.sgd import Hooks, Pull, descend
from fedfew.training.supervised import label_loss, summed, train_server
from fedfew.training.updates import contributions, step_size
from fedfew.training.vote import Ballot, can_reach_threshold, vote


@dataclass(frozen=True)
class FedMix(Federated):
    """FedMix with its settings; the defaults are the paper's, and 1 or 0.01 where the paper is silent."""

    alpha: Annotated[Fraction, Doc("weight of ψ, the clients' model")] = 0.5
    beta: Annotated[Fraction, Doc("weight of σ, the server's model")] = 0.3
    gamma: Annotated[Fraction, Doc("weight of ω, the last global model")] = 0.2
    views: Annotated[int, Ge(2), Doc("A: views of an image that vote on its label, at least 2")] = 5
    threshold: Annotated[Fraction, Doc("τ: a pseudo-label is used where its mean probability is at least this")] = 0.8
    lambda_s: Annotated[NonNegative, Doc("λ_s: weight of the labels' cross-entropy, at server and clients")] = 1.0
    lambda_ce: Annotated[NonNegative, Doc("λ_1: weight of the pseudo-label cross-entropy")] = 1.0
    lambda_consistency: Annotated[NonNegative, Doc("λ_2: weight of the consistency of views 1 and 2")] = 1.0
    lambda_anchor: Annotated[NonNegative, Doc("λ_L1: weight of ‖σ − ψ‖²")] = 0.01
    anchor: Annotated[
        Literal["trained", "previous", "omega"], Doc("what the anchor pulls to: this round's σ, the last one's, or ω")
    ] = "trained"
    mask_on: Annotated[
        Literal["mean", "first"], Doc("τ is compared with the mean of the views, or with view 1 alone")
    ] = "mean"
    ce_over: Annotated[
        Literal["confident", "batch"],
        Doc("the cross-entropy is a mean over the confident images, or over the whole batch"),
    ] = "confident"
    vote: Voting = PLAIN_VOTE
    client_labels: ClientLabels = NO_LABELS

    def __post_init__(self) -> None:
        check_mix(self.alpha, self.beta, self.gamma)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """σ ← ω_t, trained on D_s."""
        sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s)
        extra = {"previous": state.sigma} if self.anchor == "previous" else {}
        return replace(state, sigma=sigma, extra=extra | self.vote.learn(site))

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """ω_t, this round's step size, and the anchor if it is another vector."""
        payload = {"omega": state.omega} | step_size(self.client, state)
        if self.lambda_anchor and self.anchor != "omega":
            payload["sigma"] = state.sigma if self.anchor == "trained" else state.extra["previous"]
        return payload | self.vote.message(state)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """ψ^k ← ω_t, trained on the client's images."""
        network, ballot = site.network, Ballot(len(site))
        network.load(payload["omega"])
        adjust = self.vote.adjust(payload, site, rng)
        supervise = label_loss(site, self.server, self.client_labels.batch, self.lambda_s, rng)

        def loss_of(indices: Tensor) -> Tensor | None:
            loss, labels, keep = self.loss(network, site.samples.take(indices), rng, adjust)
            ballot.record(indices, labels, keep)
            return summed(loss, supervise())

        anchor = Pull(payload.get("sigma", payload["omega"]).to(network.device), self.lambda_anchor)
        hooks = Hooks(anchor.add_gradient if self.lambda_anchor else None)
        steps = descend(network, self.client, float(payload["lr"]), len(site), loss_of, rng, hooks)
        return Trained({"psi": network.snapshot()}, {"coverage": ballot.coverage, "steps": float(steps)}, ballot.votes)

    def loss(
        self, network: Network, samples: Samples, rng: torch.Generator, adjust: Adjust = unadjusted
    ) -> tuple[Tensor, Tensor, Tensor]:
        """λ_2 ‖p_1 − p_2‖² + λ_1 CE(ŷ, f(u)), the labels ŷ and the mask of the confident ones.

        Views 1 and 2 carry the gradient and vote too; views 3..A only vote, in one pass without autograd, for images
        that can still reach τ; the cross-entropy pass runs on the confident images alone. For A = 5 this costs 6 to 9
        forward passes, plus 3·coverage.
        """
        family = samples.views(self.views, rng)
        pair = network(joined(family[:2])).softmax(1).unflatten(0, (2, -1))
        consistency = (pair[0] - pair[1]).square().sum(1).mean()
        ballots = pair.detach()
        if self.views > 2:
            ballots = torch.cat([ballots, self.further_votes(network, family, ballots, adjust)])
        labels, keep = vote(ballots, self.threshold, self.mask_on, adjust)
        loss = self.lambda_consistency * consistency
        confident = int(keep.sum())
        if confident and self.lambda_ce:
            total = cross_entropy(network(samples.take(keep)), labels[keep], reduction="sum")
            loss = loss + self.lambda_ce * total / (confident if self.ce_over == "confident" else len(samples))
        return loss, labels, keep

    def further_votes(self, network: Network, family: Sequence[Samples], ballots: Tensor, adjust: Adjust) -> Tensor:
        """The softmax outputs of views 3..A; zero for images whose label is dropped whatever these views say.

        Batch normalisation needs all images, and a client's own class mix may lift any of them over τ.
        """
        others = ballots.new_zeros(len(family) - len(ballots), *ballots.shape[1:])
        wanted = torch.ones(len(family[0]), dtype=torch.bool)
        if adjust is unadjusted and not network.layout.has_buffers:
            wanted = can_reach_threshold(ballots, self.views, self.threshold, self.mask_on).cpu()
        if wanted.any():
            with torch.no_grad():
                outputs = network(joined([view.take(wanted) for view in family[len(ballots) :]])).softmax(1)
            others[:, wanted.to(others.device)] = outputs.unflatten(0, (len(others), -1))
        return others

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """ψ by the aggregator, then ω_{t+1} = αψ + βσ + γω_t."""
        prox = 2 * self.lambda_anchor  # the anchor pulls like a proximal term
        parts = contributions(state, updates, self.client, prox)
        psi = self.aggregator(parts, state.omega, state.sigma)
        omega = mix(psi.vector, state.sigma, state.omega, self.alpha, self.beta, self.gamma)
        return replace(state, omega=omega), Outcome(psi.weights, clients=psi.vector)


def check_mix(alpha: float, beta: float, gamma: float) -> None:
    """Refuse weights that are negative or do not sum to 1."""
    if not (min(alpha, beta, gamma) >= 0 and abs(alpha + beta + gamma - 1) <= 1e-6):  # so that NaN is refused too
        weights = f"α={alpha:g}, β={beta:g}, γ={gamma:g} sum to {alpha + beta + gamma:g}"
        raise FedfewError("E106", "method.alpha, method.beta, method.gamma", f"{weights}, not to 1 with all ≥ 0")


def mix(psi: Tensor, sigma: Tensor, omega: Tensor, alpha: float, beta: float, gamma: float) -> Tensor:
    """ω_{t+1} = α ψ_{t+1} + β σ_{t+1} + γ ω_t (Eq. 9)."""
    check_mix(alpha, beta, gamma)
    return alpha * psi + beta * sigma + gamma * omega


FEDMIX = Entry(FedMix, aggregator="fedfreq", sums="all")
