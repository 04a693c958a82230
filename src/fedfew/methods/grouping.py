"""Grouping: client models are averaged in random groups, each with the server's model, to lower gradient diversity.

Z. Zhang, Y. Yang, Z. Yao, Y. Yan, J. E. Gonzalez, M. W. Mahoney: Improving Semi-supervised Federated Learning by
Reducing the Gradient Diversity of Models. 2020.

    server, in parallel:  w_s = ω_t − η ∇ CE(y, f(x));   client k of group i:  w_k = w_i − η ∇ FixMatch(u)
    next:                 uploads split at random into S groups,  w_i = (w_s + Σ_{k∈G_i} w_k) / (|G_i| + 1)
                          group i's model goes to clients of the next round,  ω = mean w_i is evaluated
    metric:               Δ = Σ ‖∇_k‖² / ‖Σ ∇_k‖²  with ∇_k what client k changed; 1/m where all agree

The published nets use GroupNorm. Which group's model a client gets is drawn again each round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedfew.core.layout import Payload, Vector
from fedfew.core.settings import Count, Doc, Fraction, NonNegative
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite, Contribution, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated
from fedfew.objectives.objective import train_unlabeled
from fedfew.objectives.pseudo_labels import FixMatch
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.supervised import train_server
from fedfew.training.updates import contributions, schedule

OTHER_STARTS = "the clients of a group start from different models, so their changes cannot be compared from one point"


def gradient_diversity(changes: Iterable[Vector]) -> float:
    """Δ = Σ‖∇_k‖² / ‖Σ∇_k‖²: 1/m for equal changes, 1 for orthogonal ones, large where they cancel out."""
    total, parts = torch.zeros((), dtype=torch.float64), 0.0
    for change in changes:
        exact = change.double()
        total = total + exact
        parts += float(exact.square().sum())
    return parts / max(float(total.square().sum()), 1e-30)


@dataclass(frozen=True)
class Grouping(Federated):
    """FixMatch clients, a server in parallel, averages within random groups."""

    groups: Annotated[Count, Doc("S: groups the uploads are split into; 1: one average for all")] = 2
    threshold: Annotated[Fraction, Doc("τ of FixMatch: the least probability of a pseudo-label that is used")] = 0.95
    weight: Annotated[NonNegative, Doc("weight of FixMatch's loss")] = 1.0
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    vote: Voting = PLAIN_VOTE

    def start(self, omega: Vector) -> ServerState:
        return ServerState(0, omega, omega, extra={"groups": omega[None].clone(), "lot": torch.tensor(0)})

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """w_s, trained from ω while the clients train from their groups' models; and the seed that assigns those."""
        sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s)
        lot = torch.randint(2**62, (), generator=rng)
        return replace(state, sigma=sigma, extra=state.extra | {"lot": lot} | self.vote.learn(site))

    def sent(self, state: ServerState, client: int) -> Vector:
        """The group's model that this client starts from."""
        models = state.extra["groups"]
        lot = stream(int(state.extra["lot"]), "group", client)
        return models[int(torch.randint(len(models), (), generator=lot))]

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return {"omega": self.sent(state, client)} | schedule(self.client, state) | self.vote.message(state)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        fixmatch = FixMatch(self.threshold, self.weight)
        return train_unlabeled(fixmatch, self.client, self.vote, payload, site, rng)

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        parts = contributions(state, updates)
        models: list[Vector] = []
        weights: dict[int, float] = {}
        dealt = deal(len(parts), self.groups, rng)
        for members in dealt:
            model, shares = self.group_model([parts[i] for i in members.tolist()], state)
            models.append(model)
            weights |= {client: share / len(dealt) for client, share in shares.items()}
        groups = torch.stack(models)
        diversity = gradient_diversity(part.vector - self.sent(state, part.client) for part in parts)
        clients = self.aggregator(parts, state.omega, state.sigma).vector
        outcome = Outcome(dict(sorted(weights.items())), {"gradient_diversity": diversity}, clients)
        return replace(state, omega=groups.double().mean(0).float(), extra=state.extra | {"groups": groups}), outcome

    def group_model(self, members: Sequence[Contribution], state: ServerState) -> tuple[Vector, dict[int, float]]:
        """w_i = (w_s + |G_i|·ψ) / (|G_i| + 1) with ψ the group's aggregate, and each client's share in it."""
        psi = self.aggregator(members, state.omega, state.sigma)
        clients = len(members) / (len(members) + 1)
        model = clients * psi.vector + (1 - clients) * state.sigma
        return model, {client: clients * weight for client, weight in psi.weights.items()}


def deal(count: int, groups: int, rng: torch.Generator) -> list[Tensor]:
    """0..count−1 in random order, in groups whose sizes differ by at most one; none is empty."""
    return list(torch.randperm(count, generator=rng).tensor_split(min(groups, count)))


GROUPING = Entry(
    Grouping,
    aggregator="uniform",
    unfit={"fltrust": OTHER_STARTS, "fednova": OTHER_STARTS},
    strong_views=True,
)
