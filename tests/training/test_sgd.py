"""The SGD loop: step for step torch's own SGD, its schedules, and penalties in closed form."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.methods.tiny import (
    CLASSES,
    PIXELS,
    client_site,
    generator,
    gradient_of,
    linear_logits,
    linear_network,
    random_labeled,
    random_theta,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.samples import OwnView
from fedfew.training.sgd import Hooks, LocalSGD, Pull, batches, descend
from fedfew.training.supervised import Supervised, train_supervised

OPTIONS = [
    (momentum, nesterov, decay, clip)
    for momentum, nesterov, decay, clip in product((0.0, 0.9), (False, True), (0.0, 0.05), (0.0, 0.3))
    if momentum or not nesterov
]


def ends_like_torch(how: LocalSGD, lr: float, theirs: Callable[[nn.Parameter], Optimizer], rate: float = 1.0) -> None:
    """Train the same model by ``descend`` and by an optimizer of torch, on the same batches."""
    data, start, network = random_labeled(11, 1), random_theta(2), linear_network()
    if rate != 1:
        network = replace(network, rates=torch.full((network.layout.trainable,), rate))
    network.load(start)

    def loss_of(indices: Tensor) -> Tensor:
        return 5 * cross_entropy(network(data.samples.take(indices)), data.labels[indices])

    steps = descend(network, how, lr, len(data), loss_of, generator(3))

    theta, order = nn.Parameter(start.clone()), generator(3)
    optimizer = theirs(theta)
    for _ in range(how.epochs):
        for indices in torch.randperm(11, generator=order).split(4):
            optimizer.zero_grad()
            (5 * cross_entropy(linear_logits(theta, data.samples.data[indices]), data.labels[indices])).backward()
            if how.clip:
                assert theta.grad is not None and theta.grad.norm() > how.clip, (
                    "the clip must bind, or nothing is tested"
                )
                nn.utils.clip_grad_norm_([theta], how.clip)
            optimizer.step()
    assert steps == 3 * how.epochs and not torch.equal(network.snapshot(), start)
    torch.testing.assert_close(network.snapshot(), theta.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("momentum", "nesterov", "decay", "clip"), OPTIONS)
def test_steps_are_those_of_torchs_sgd(momentum: float, nesterov: bool, decay: float, clip: float) -> None:
    how = LocalSGD(epochs=2, batch=4, momentum=momentum, nesterov=nesterov, weight_decay=decay, clip=clip)
    ends_like_torch(how, 0.1, lambda theta: SGD([theta], 0.1, momentum, nesterov=nesterov, weight_decay=decay))


@pytest.mark.parametrize(
    ("decay", "clip", "rate"), [(0.0, 0.0, 1.0), (0.05, 0.0, 1.0), (0.05, 0.3, 1.0), (0.05, 0.0, 0.1)]
)
def test_steps_are_those_of_torchs_adamw(decay: float, clip: float, rate: float) -> None:
    """A rate for every entry is a step size of its own."""
    how = LocalSGD(epochs=3, batch=4, momentum=0.9, weight_decay=decay, clip=clip, optimizer="adamw")
    ends_like_torch(how, 0.01, lambda theta: AdamW([theta], 0.01 * rate, weight_decay=decay), rate)


def test_an_augmentation_of_ones_own() -> None:
    data, seen = random_labeled(6, 1), []

    def darker(images: Tensor, rng: torch.Generator) -> Tensor:
        seen.append(images.shape)
        return images.float() * torch.rand(1, generator=rng)

    network, how = linear_network(), LocalSGD(epochs=1, batch=6)
    mine = Supervised(how, "mine:darker", own=OwnView(darker, "server.augment"))
    dark, plain = (
        train_supervised(network, random_theta(2), data, h, 0.1, generator(3)) for h in (mine, Supervised(how))
    )
    assert seen == [data.samples.data.shape] and not torch.equal(dark[0], plain[0])
    wrong = Supervised(how, "mine:wrong", own=OwnView(lambda images, rng: images[:1], "server.augment"))
    with pytest.raises(FedfewError, match=r"E115 server.augment.*gave \(1, 1, 8, 8\)"):
        train_supervised(network, random_theta(2), data, wrong, 0.1, generator(3))


def test_every_image_is_in_one_batch_of_an_epoch() -> None:
    parts = list(batches(10, 4, generator(0)))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    assert torch.cat(parts).tolist() != torch.cat(list(batches(10, 4, generator(1)))).tolist()
    assert list(batches(0, 4, generator(0))) == []


def test_the_server_minimises_lambda_s_times_the_mean_cross_entropy() -> None:
    data, start, lr, lambda_s = random_labeled(6, 1), random_theta(2), 0.25, 3.0
    how = Supervised(LocalSGD(batch=64))

    sigma, steps = train_supervised(linear_network(), start, data, how, lr, generator(0), scale=lambda_s)

    theta = start.clone().requires_grad_()
    log_p = linear_logits(theta, data.samples.data).log_softmax(1)
    mean_ce = -log_p[torch.arange(6), data.labels].mean()
    torch.testing.assert_close(sigma, start - lr * lambda_s * gradient_of(mean_ce, theta), rtol=1e-5, atol=1e-6)
    assert steps == 1


@pytest.mark.parametrize("name", ["weak", "strong"])
def test_the_server_may_augment_its_images(name: str) -> None:
    data, start, lr = random_labeled(6, 1), random_theta(2), 0.25
    how = Supervised(LocalSGD(batch=64), name)

    sigma, _ = train_supervised(linear_network(), start, data, how, lr, generator(0))

    rng = generator(0)
    order = torch.randperm(6, generator=rng)
    images = getattr(data.samples.take(order), name)(rng).data
    theta = start.clone().requires_grad_()
    slope = gradient_of(cross_entropy(linear_logits(theta, images), data.labels[order]), theta)
    torch.testing.assert_close(sigma, start - lr * slope, rtol=1e-5, atol=1e-6)


def test_a_pull_is_the_exact_gradient_of_its_penalty() -> None:
    network = linear_network()
    size, strength = CLASSES * (PIXELS + 1), 0.25
    # eighths, so that 2λ(θ − target) is exact in float32
    theta, target = (torch.randint(-64, 64, (size,), generator=generator(s)) / 8 for s in (1, 2))
    network.load(theta)
    network.gradient.fill_(1.0)

    Pull(target, strength).add_gradient(network)

    assert torch.equal(network.gradient, 1 + 2 * strength * (theta - target))
    variable = theta.clone().requires_grad_()
    assert torch.equal(network.gradient - 1, gradient_of(strength * (variable - target).square().sum(), variable))


def test_a_pull_leaves_running_statistics_alone() -> None:
    network = Network.of(nn.Sequential(nn.BatchNorm2d(2), nn.Flatten()))
    Pull(torch.full((network.layout.size,), 9.0), 1.0).add_gradient(network)
    n = network.layout.trainable
    assert n == 4 and network.gradient[:n].all() and not network.gradient[n:].any()


def test_without_a_loss_only_a_penalty_takes_steps() -> None:
    site, start, target = client_site(0, 10), random_theta(1), random_theta(2)
    how = LocalSGD(batch=4, epochs=2, momentum=0.9, weight_decay=0.1)
    site.network.load(start)
    assert descend(site.network, how, 0.1, len(site), lambda indices: None, generator(0)) == 0
    assert torch.equal(site.network.snapshot(), start)

    plain = LocalSGD(batch=4, epochs=2)
    pull = Pull(target, 0.5).add_gradient
    assert descend(site.network, plain, 0.1, len(site), lambda indices: None, generator(0), Hooks(pull)) == 6
    # each of the 2·3 steps shrinks the distance by 1 − 2·0.1·0.5
    torch.testing.assert_close(site.network.snapshot(), target + 0.9**6 * (start - target), rtol=1e-4, atol=1e-6)


def test_no_epochs_and_no_images_change_nothing() -> None:
    site = client_site(0, 0)
    site.network.load(random_theta(1))
    how = Supervised(LocalSGD(epochs=0))
    assert torch.equal(
        train_supervised(linear_network(), random_theta(1), random_labeled(5, 1), how, 1.0, generator(0))[0],
        random_theta(1),
    )
    pull = Pull(random_theta(2), 0.5).add_gradient
    assert descend(site.network, LocalSGD(), 1.0, 0, lambda indices: None, generator(0), Hooks(pull)) == 0
    assert torch.equal(site.network.snapshot(), random_theta(1))


def test_constant_and_cosine_rates() -> None:
    assert LocalSGD(lr=0.4).rate(149, ()) == 0.4
    cosine = LocalSGD(lr=0.4, schedule="cosine", rounds=100)
    assert cosine.rate(0, ()) == pytest.approx(0.4)
    assert cosine.rate(25, ()) == pytest.approx(0.4 * (1 + math.sqrt(0.5)) / 2)
    assert cosine.rate(50, ()) == pytest.approx(0.2)
    assert cosine.rate(100, ()) == pytest.approx(0.0)


def test_a_plateau_cuts_the_rate_after_patience_rounds_without_a_gain() -> None:
    how = LocalSGD(lr=0.9, schedule="plateau", patience=2, cut=3.0)
    #     round:   1    2    3    4    5    6    7    8
    history = (0.5, 0.4, 0.5, 0.6, 0.6, 0.5, 0.1, 0.2)
    # the gain of round 1 is followed by two without: cut; the gain of round 4 by four: cut twice
    rates = [how.rate(t, history[:t]) for t in range(len(history) + 1)]
    # a round knows the scores up to two rounds before it: round t uses history[:t − 1]
    assert rates == pytest.approx([0.9, 0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.1, 0.1])
    assert how.rate(9, (*history, 0.9)) == pytest.approx(0.9 / 27)
