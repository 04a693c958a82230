"""A client's training on an objective: the part that FedAvg, FedProx, DS-FL and grouping have in common."""

import torch
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.types import ClientSite, Payload, Trained
from fedfew.objectives.objective import Objective
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import Hooks, LocalSGD, Pull, descend
from fedfew.training.supervised import LabelLoss, summed
from fedfew.training.vote import Ballot


def train_unlabeled(
    objective: Objective,
    sgd: LocalSGD,
    vote: Voting,
    payload: Payload,
    site: ClientSite,
    rng: torch.Generator,
    prox: float = 0.0,
    correction: Vector | None = None,
    supervise: LabelLoss = lambda: None,
) -> Trained:
    """ψ from the payload's ω by SGD on objective(u) + (prox/2)‖ψ − ω‖²; reports steps, and coverage if it makes labels.

    ``correction`` is added to the gradient of every batch that has a loss (SCAFFOLD). ``supervise`` is the loss on the
    client's own labels, where it has any, and is added to every batch's.
    """
    network, ballot, learned = site.network, Ballot(len(site)), False
    network.load(payload["omega"])
    adjust = vote.adjust(payload, site, rng)
    shift = None if correction is None else correction.to(network.device)
    step = objective.begin(site, float(payload["progress"]), rng, adjust)

    def loss_of(indices: Tensor) -> Tensor | None:
        nonlocal learned
        outcome = step(indices)
        loss = summed(outcome.loss, supervise())
        learned = learned or loss is not None
        if outcome.labels is not None and outcome.keep is not None:
            ballot.record(indices, outcome.labels, outcome.keep)
        if loss is not None and shift is not None:
            network.gradient[: len(shift)].add_(shift)
        return loss

    near = Pull(payload["omega"].to(network.device), prox / 2)
    hooks = Hooks(near.add_gradient if prox else None)
    steps = descend(network, sgd, float(payload["lr"]), len(site), loss_of, rng, hooks)
    # with the proximal term alone a client has learned nothing, and is left out of FedNova's mean
    metrics = {"steps": float(steps if learned else 0)} | ({"coverage": ballot.coverage} if objective.labels else {})
    return Trained({"psi": network.snapshot()}, metrics, ballot.votes if objective.labels else None)
