"""Training on labels: the server's on its own, and a client's where the scenario gives it some."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet, OwnView, Samples, StrongView
from fedfew.core.settings import Doc, Natural
from fedfew.core.types import ClientSite, LabeledClientSite, ServerSite, ServerState
from fedfew.training.sgd import NO_HOOKS, PLAIN_SGD, Hooks, LocalSGD, descend

LabelLoss = Callable[[], Tensor | None]
"""weight · CE(y, f(x)) on a fresh draw of the client's labels; None where it has none."""


@dataclass(frozen=True)
class Supervised:
    """How the server trains on its labels."""

    sgd: LocalSGD = PLAIN_SGD
    augment: Annotated[
        str, Doc("what is done to the labeled images: none, weak, strong, or package.module:function of your own")
    ] = "none"
    shift: Annotated[Natural, Doc("augmentation: largest shift in pixels, vertical and horizontal")] = 2
    annealing: Annotated[
        Literal["none", "log", "linear", "exp"],
        Doc("annealing (UDA): labels predicted above a rising probability are left out; how that rises"),
    ] = "none"
    own: OwnView | None = None
    """The user's own function, if ``augment`` names one."""

    def augmented(self, samples: Samples, rng: torch.Generator) -> Samples:
        """The view of each sample that the server trains on."""
        if self.augment == "none":
            return samples
        if self.own is not None:
            return samples.strong(rng, self.own)
        if self.augment == "strong":
            return samples.strong(rng, StrongView(shift=self.shift))
        return samples.weak(rng, self.shift)

    def signal_bound(self, progress: float, classes: int) -> float:
        """η_t of UDA's training signal annealing: from 1/C to 1; examples above it are left out.

        log: 1 − exp(−5t/T), linear: t/T, exp: exp(5(t/T − 1)), stretched over [1/C, 1].
        """
        if self.annealing == "none":
            return 1.0
        share = {"log": 1 - math.exp(-5 * progress), "linear": progress, "exp": math.exp(5 * (progress - 1))}
        return share[self.annealing] * (1 - 1 / classes) + 1 / classes


def train_supervised(
    network: Network,
    start: Vector,
    labeled: LabeledSet,
    how: Supervised,
    lr: float,
    rng: torch.Generator,
    *,
    scale: float = 1.0,
    progress: float = 1.0,
    hooks: Hooks = NO_HOOKS,
) -> tuple[Vector, int]:
    """``start`` after SGD on ``scale · CE(y, f(x))``, Eq. 6 of the paper, and the number of steps."""
    network.load(start)

    def loss_of(indices: Tensor) -> Tensor | None:
        samples = how.augmented(labeled.samples.take(indices), rng)
        logits, truth = network(samples), labeled.labels[indices].to(network.device)
        if how.annealing != "none":
            sure = logits.detach().softmax(1).gather(1, truth[:, None]).squeeze(1)
            unlearnt = sure <= how.signal_bound(progress, logits.shape[1])
            if not unlearnt.any():
                return None
            logits, truth = logits[unlearnt], truth[unlearnt]
        return scale * cross_entropy(logits, truth)

    steps = descend(network, how.sgd, lr, len(labeled), loss_of, rng, hooks)
    return network.snapshot(), steps


def train_server(
    how: Supervised,
    start: Vector,
    state: ServerState,
    site: ServerSite,
    rng: torch.Generator,
    scale: float = 1.0,
    epochs: int = 0,
    hooks: Hooks = NO_HOOKS,
) -> Vector:
    """σ: ``start`` trained on the server's labels with the step size and annealing of the state's round.

    ``epochs`` > 0 replaces the usual number: a warm-up before the first round, on all labels whatever the annealing,
    because an untrained model has nothing to hold back. The site's ``passes`` track it.
    """
    if epochs:
        how = replace(how, sgd=replace(how.sgd, epochs=epochs))
        hooks = replace(hooks, passes=site.passes)
    lr, progress = how.sgd.rate(state.round, state.validation), state.round / max(how.sgd.rounds, 1)
    sigma, _ = train_supervised(
        site.network, start, site.labeled, how, lr, rng,
        scale=scale, progress=1.0 if epochs else progress, hooks=hooks,
    )  # fmt: skip
    return sigma


def label_loss(site: ClientSite, how: Supervised, batch: int, weight: float, rng: torch.Generator) -> LabelLoss:
    """The loss on ``batch`` of the client's labeled images at a time, augmented as the server's labeled images are."""
    if not isinstance(site, LabeledClientSite) or not weight:
        return lambda: None
    labeled, network = site.labeled, site.network

    def loss() -> Tensor:
        chosen = torch.randperm(len(labeled), generator=rng)[:batch]
        samples = how.augmented(labeled.samples.take(chosen), rng)
        return weight * cross_entropy(network(samples), labeled.labels[chosen].to(network.device))

    return loss


def summed(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two losses, either of which may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
