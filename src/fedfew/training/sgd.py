"""Local training: one loop of SGD or AdamW in place on a network's vector, used by the server and by every client."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet, OwnView, Samples, StrongView
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.core.types import Passes, ServerSite, ServerState
from fedfew.training.adamw import AdamW

MOST_STEPS = 100_000  # the most a client may claim for one round


@dataclass(frozen=True)
class LocalSGD:
    """How one site trains: mini-batch SGD or AdamW, and how its step size changes over the rounds."""

    epochs: Annotated[Natural, Doc("passes over the site's images in a round")] = 1
    batch: Annotated[Count, Doc("images in a mini-batch")] = 64
    lr: Annotated[Positive, Doc("step size η in the first round")] = 1e-3
    momentum: Annotated[Fraction, Doc("momentum, starting at zero in every round")] = 0.0
    nesterov: Annotated[bool, Doc("Nesterov's form of the momentum")] = False
    weight_decay: Annotated[NonNegative, Doc("pull of the weights towards zero")] = 0.0
    clip: Annotated[NonNegative, Doc("bound on the gradient's norm; 0: none")] = 0.0
    schedule: Annotated[
        Literal["constant", "cosine", "plateau"],
        Doc("step size over the rounds: constant, cosine decay to 0, or cut when validation accuracy stops rising"),
    ] = "constant"
    patience: Annotated[Count, Doc("plateau: rounds without better validation accuracy before a cut")] = 20
    cut: Annotated[Positive, Doc("plateau: the step size is divided by this")] = 3.0
    optimizer: Annotated[
        Literal["sgd", "adamw"],
        Doc("sgd, or adamw (β₁ 0.9, β₂ 0.999, decoupled weight_decay; momentum and nesterov are sgd's)"),
    ] = "sgd"
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


@dataclass(frozen=True)
class Supervised:
    """How the server trains on its labels."""

    sgd: LocalSGD = LocalSGD()
    augment: Annotated[
        str, Doc("what is done to the labeled images: none, weak, strong, or package.module:function of your own")
    ] = "none"
    shift: Annotated[Natural, Doc("augmentation: largest shift in pixels, vertical and horizontal")] = 2
    annealing: Annotated[
        Literal["none", "log", "linear", "exp"],
        Doc("training signal annealing (UDA): how the bound on the probability of labels that still train rises"),
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
class Residual:
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
    residual: Residual | None = None
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
