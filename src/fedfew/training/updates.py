"""What methods that exchange whole models have in common."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Payload, Vector
from fedfew.core.settings import Doc, Natural
from fedfew.core.types import Aggregate, Aggregator, ClientUpdate, Contribution, ServerSite, ServerState
from fedfew.training.sgd import LocalSGD

Order = Annotated[
    Literal["before", "after"],
    Doc("whether the server trains after the aggregation (and once before the first round) or before the clients"),
]
"""When the server trains. Both orders train the same way; the model at the end of a round is scored."""
Warmup = Annotated[Natural, Doc("server epochs before the first round; 0: as many as in any other round")]


def scalar(value: float) -> Tensor:
    """A number as it travels in a payload, e.g. the round's step size."""
    return torch.tensor(value, dtype=torch.float64)


def step_size(sgd: LocalSGD, state: ServerState) -> Payload:
    """This round's step size, as the server sends it."""
    return {"lr": scalar(sgd.rate(state.round, state.validation))}


def schedule(sgd: LocalSGD, state: ServerState) -> Payload:
    """This round's step size and the run's progress (0..1), for objectives whose weight has a ramp."""
    return step_size(sgd, state) | {"progress": scalar(state.round / max(sgd.rounds, 1))}


def contributions(
    state: ServerState,
    updates: Sequence[ClientUpdate],
    sgd: LocalSGD | None = None,
    prox: float = 0.0,
    vector: Callable[[ClientUpdate], Vector] = lambda update: update.reply["psi"],
) -> list[Contribution]:
    """The updates as an aggregator sees them, with a_k from the steps a client reports and how it trains (``sgd``).

    No client is believed more steps than its images allow: FedNova multiplies all changes by the mean of the steps, so
    one that claims a billion would blow up the model. ``prox`` is the strength of a proximal term; ``vector`` says what
    is aggregated of an update.
    """
    lr = sgd.rate(state.round, state.validation) if sgd else 0.0

    def work(update: ClientUpdate) -> float:
        steps = max(update.metrics.get("steps", 1.0), 0.0)
        return sgd.work(min(steps, sgd.most_steps(update.examples)), lr, prox) if sgd else steps

    return [
        Contribution(
            u.client,
            vector(u),
            u.examples,
            state.answered(u.client),
            work(u),
            min(max(u.metrics.get("status", 0.0), 0.0), 1.0),
        )
        for u in updates
    ]


def aggregate_active(
    aggregator: Aggregator, parts: Sequence[Contribution], omega: Vector, sigma: Vector
) -> tuple[Aggregate, list[Contribution]]:
    """The aggregate of the clients that had something to learn from, and these clients; σ where there is none.

    The others would only hold the average back.
    """
    active = [part for part in parts if part.steps > 0]
    return (aggregator(active, omega, sigma) if active else Aggregate(sigma, {})), active


def with_momentum(state: ServerState, psi: Vector, momentum: float, trainable: int) -> tuple[Vector, dict[str, Tensor]]:
    """Server momentum: v ← m·v + (σ − ψ), ω = σ − v, and the new v for the server's state; ψ itself where m is 0.

    Only weights gather momentum: running statistics of a batch norm are taken as averaged, because momentum
    can push a variance below zero.
    """
    if not momentum:
        return psi, {}
    step = (state.sigma - psi)[:trainable]
    velocity = momentum * state.extra["velocity"] + step if "velocity" in state.extra else step
    return torch.cat([state.sigma[:trainable] - velocity, psi[trainable:]]), {"velocity": velocity}


def outputs(layout: Layout) -> int:
    """The number of classes, from the network's last matrix: the length of a reply's rows."""
    return next((shape[0] for shape in reversed(layout.shapes) if len(shape) == 2), 0)


def check_outputs(site: ServerSite, method: str) -> None:
    """E113 unless that number is right: replies with an entry for each class could not be checked."""
    if outputs(site.network.layout) != site.classes:
        problem = f"{method} cannot find the number of classes: the model's last matrix must be the layer of the logits"
        raise FedfewError("E113", "model.name", problem, "Use another model, or a method that sends only models")
