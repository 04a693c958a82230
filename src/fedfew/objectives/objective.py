"""Client objectives: a loss on unlabeled images, set up once a round and called batch by batch; and training on it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedfew.core.layout import Payload, Vector
from fedfew.core.types import ClientSite, Trained
from fedfew.training.label_shift import Adjust, Voting, unadjusted
from fedfew.training.sgd import Hooks, LocalSGD, Pull, descend
from fedfew.training.supervised import LabelLoss, summed
from fedfew.training.vote import Ballot


@dataclass(frozen=True, eq=False)
class Step:
    """One batch's loss (None: nothing to learn from); if it makes pseudo-labels, these and which are confident."""

    loss: Tensor | None
    labels: Tensor | None = None
    keep: Tensor | None = None


Batch = Callable[[Tensor], Step]
"""The loss of a batch given by its indices."""


class Objective(Protocol):
    """Sets up a client's training: from the site and the run's progress (0..1), returns the loss of a batch of indices.

    State of one round (a teacher, labels made once) lives in the returned function; what must last longer goes to
    ``site.memory``. ``adjust`` is applied to probabilities before they become labels.
    """

    labels: ClassVar[bool]
    """Whether it makes pseudo-labels, so that ``vote.prior`` has an effect.

    It may also have ``published``, a mapping of settings to the values that its publication states.
    """

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch: ...


def ramp(progress: float, length: float) -> float:
    """From 0 to 1 over the first ``length`` of the run, linearly; 1 at once when length is 0."""
    return min(1.0, progress / length) if length else 1.0


def soft_ramp(progress: float, length: float) -> float:
    """exp(−5(1 − x)²) with x the linear ramp: 0.007 at the start, 1 at the end (Laine & Aila 2017)."""
    return math.exp(-5 * (1 - ramp(progress, length)) ** 2)


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
