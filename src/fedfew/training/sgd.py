"""Local training: one loop of SGD or AdamW in place on a network's vector, used by the server and by every client."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.samples import OwnView
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.core.types import Passes

MOST_STEPS = 100_000
"""The most a client may claim for one round."""
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""AdamW's constants."""


@dataclass(frozen=True)
class LocalSGD:
    """How one site trains: mini-batch SGD or AdamW, and how its step size changes over the rounds."""

    epochs: Annotated[Natural, Doc("passes over the site's images in a round")] = 1
    batch: Annotated[Count, Doc("images in a mini-batch")] = 64
    lr: Annotated[Positive, Doc("step size η in the first round")] = 1e-3
    momentum: Annotated[Fraction, Doc("momentum; it starts at zero in every round")] = 0.0
    nesterov: Annotated[bool, Doc("Nesterov's form of the momentum")] = False
    weight_decay: Annotated[NonNegative, Doc("weight decay")] = 0.0
    clip: Annotated[NonNegative, Doc("gradients are clipped to this norm; 0: off")] = 0.0
    schedule: Annotated[
        Literal["constant", "cosine", "plateau"],
        Doc("step size over the rounds: constant, cosine decay to 0, or cut when validation accuracy stops rising"),
    ] = "constant"
    patience: Annotated[Count, Doc("plateau: rounds without better validation accuracy before a cut")] = 20
    cut: Annotated[Positive, Doc("plateau: the step size is divided by this number")] = 3.0
    optimizer: Annotated[Literal["sgd", "adamw"], Doc("sgd, or adamw, which ignores momentum and nesterov")] = "sgd"
    rounds: int = 150

    def rate(self, round: int, validation: tuple[float, ...]) -> float:
        """The step size of a round, a pure function of the round and of the validation accuracies known before it.

        Only scores up to two rounds back count, because another process may still be computing the last one.
        """
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * round / max(self.rounds, 1)))
        if self.schedule == "plateau":
            return self.lr / self.cut ** _plateaus(validation[: max(round - 1, 0)], self.patience)
        return self.lr

    def most_steps(self, images: int) -> int:
        """Steps that a site with so many images can take in a round."""
        return self.epochs * -(-images // self.batch)

    def work(self, steps: float, lr: float = 0.0, prox: float = 0.0) -> float:
        """a_k of FedNova: how far ``steps`` steps go along a constant gradient, in units of η times that gradient.

        Plain SGD: a = steps. Momentum ρ: c ← ρc + 1, a ← a + c. A proximal term: a ← (1 − ημ)a + 1. All three are the
        loop below, which follows ``_step`` for a gradient of 1 and a pull back of ημ·a.
        """
        a = velocity = 0.0
        for _ in range(round(min(steps, MOST_STEPS))):
            gradient = 1 - lr * prox * a
            velocity = self.momentum * velocity + gradient
            a += gradient + self.momentum * velocity if self.nesterov else velocity
        return a


PLAIN_SGD = LocalSGD()


def _plateaus(validation: tuple[float, ...], patience: int) -> int:
    best, waited, cuts = -1.0, 0, 0
    for accuracy in validation:
        if accuracy > best:
            best, waited = accuracy, 0
        else:
            waited += 1
            if waited == patience:
                cuts, waited = cuts + 1, 0
    return cuts


@dataclass(frozen=True)
class ClientSGD(LocalSGD):
    """How a client trains, and the strong view of its images for methods that train on one."""

    augment: Annotated[
        str, Doc("the strong view: standard (RandAugment and a grey square), or package.module:function of your own")
    ] = "standard"
    own: OwnView | None = None
    """The user's own function, if ``augment`` names one."""


@dataclass(frozen=True, eq=False)
class Pull:
    """The penalty ``strength · ‖θ − target‖²``; its gradient has a closed form, so it needs no autograd."""

    target: Vector
    strength: float

    def add_gradient(self, network: Network) -> None:
        """gradient += 2 · strength · (θ − target), on the trainable part, in place."""
        n = network.layout.trainable
        network.gradient[:n].add_(network.vector[:n], alpha=2 * self.strength)
        network.gradient[:n].add_(self.target[:n], alpha=-2 * self.strength)


@dataclass(frozen=True, eq=False)
class ResidualConnection:
    """Residual weight connection (CBAFed): θ ← share · θ' + (1 − share) · θ, every ``interval`` passes.

    θ' is the model of the last connection, at first that of the first pass; ``earlier`` holds it.
    """

    earlier: Vector
    share: float
    interval: int

    def connect(self, network: Network, passes: int) -> None:
        """After so many passes: 1 (θ' is noted), 1 + interval, 1 + 2 · interval, …; after others nothing changes."""
        if (passes - 1) % self.interval:
            return
        if passes > 1:
            network.vector.lerp_(self.earlier, self.share)
        self.earlier.copy_(network.vector)


def batches(count: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """The indices 0..count−1 in a fresh random order, cut into mini-batches; the last one may be smaller."""
    if count:  # an empty tensor would split into one empty batch, whose mean loss is not a number
        yield from torch.randperm(count, generator=rng).split(size)


LossOf = Callable[[Tensor], Tensor | None]
"""The loss on a batch given by its indices; None when the batch has nothing to learn from."""


@dataclass(frozen=True, eq=False)
class Hooks:
    """What a method adds to local training."""

    penalty: Callable[[Network], None] | None = None
    """Adds a closed-form gradient; with it, a batch without a loss takes a step too."""
    after_step: Callable[[Network], None] | None = None
    """Called after each step, e.g. for a moving average."""
    velocity: Tensor | None = None
    """The momentum to continue with, changed in place; without one it starts at zero."""
    residual: ResidualConnection | None = None
    """Mixes the model with an earlier one between passes."""
    passes: Passes | None = None
    """Tracks a long training, and may continue one that was stopped."""


NO_HOOKS = Hooks()


def descend(
    network: Network,
    sgd: LocalSGD,
    lr: float,
    examples: int,
    loss_of: LossOf,
    rng: torch.Generator,
    hooks: Hooks = NO_HOOKS,
) -> int:
    """Train ``network`` in place and return the number of steps taken."""
    trainable = network.layout.trainable
    weights, gradient = network.vector[:trainable], network.gradient[:trainable]
    penalty, residual, passes, velocity = hooks.penalty, hooks.residual, hooks.passes, hooks.velocity
    adam = AdamW.of(weights) if sgd.optimizer == "adamw" else None
    if velocity is None and sgd.momentum and adam is None:
        velocity = torch.zeros_like(weights)
    network.set_training(True)
    counted = torch.zeros((), dtype=torch.int64)
    kept = {"vector": network.vector, "steps": counted} | ({} if velocity is None else {"velocity": velocity})
    kept |= {} if adam is None else {"mean": adam.mean, "square": adam.square}
    kept |= {} if residual is None else {"residual": residual.earlier}
    done = passes.begin(kept, rng) if passes else 0
    steps = int(counted)
    if adam is not None:
        adam.steps = steps
    for epoch in range(done, sgd.epochs):
        for indices in batches(examples, sgd.batch, rng):
            gradient.zero_()
            loss = loss_of(indices)
            if loss is None and penalty is None:
                continue
            if loss is not None:
                loss.backward()
            with torch.no_grad():
                if penalty is not None:
                    penalty(network)
                _clip(gradient, sgd.clip)
                if adam is None:
                    _step(weights, gradient, velocity, sgd, lr, network.rates)
                else:
                    adam.step(weights, gradient, lr, sgd.weight_decay, network.rates)
                if hooks.after_step is not None:
                    hooks.after_step(network)
            steps += 1
        if residual is not None:
            residual.connect(network, epoch + 1)
        if passes:
            passes.passed(epoch + 1, sgd.epochs, kept | {"steps": torch.tensor(steps)}, rng)
    return steps


def _clip(gradient: Tensor, bound: float) -> None:
    if bound:
        gradient.mul_(torch.clamp(bound / (gradient.norm() + 1e-12), max=1.0))


def _step(
    weights: Tensor, gradient: Tensor, velocity: Tensor | None, sgd: LocalSGD, lr: float, rates: Tensor | None = None
) -> None:
    if sgd.weight_decay:
        gradient.add_(weights, alpha=sgd.weight_decay)
    step = gradient
    if velocity is not None:
        velocity.mul_(sgd.momentum).add_(gradient)
        step = gradient.add_(velocity, alpha=sgd.momentum) if sgd.nesterov else velocity
    if rates is None:
        weights.add_(step, alpha=-lr)
    else:
        weights.addcmul_(step, rates, value=-lr)


@dataclass(eq=False)
class AdamW:
    """AdamW in place on one flat vector (I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization. ICLR 2019).

    m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²
    θ ← (1 − η r λ) θ − η r (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)        r: the entry's rate, 1 if there is none

    Its state starts at zero in every round, as SGD's momentum does: a client that is selected again starts from other
    weights.
    """

    mean: Tensor
    square: Tensor
    steps: int = 0

    @staticmethod
    def of(weights: Tensor) -> "AdamW":
        return AdamW(torch.zeros_like(weights), torch.zeros_like(weights))

    def step(self, weights: Tensor, gradient: Tensor, lr: float, decay: float, rates: Tensor | None = None) -> None:
        """One step; ``gradient`` is overwritten."""
        self.steps += 1
        self.mean.lerp_(gradient, 1 - BETA_1)
        self.square.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        if decay:
            weights.mul_(1 - lr * decay if rates is None else 1 - lr * decay * rates)
        root = torch.sqrt(self.square, out=gradient).div_((1 - BETA_2**self.steps) ** 0.5).add_(EPSILON)
        size = lr / (1 - BETA_1**self.steps)
        if rates is None:
            weights.addcdiv_(self.mean, root, value=-size)
        else:
            weights.addcmul_(self.mean / root, rates, value=-size)
