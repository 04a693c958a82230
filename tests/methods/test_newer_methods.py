"""FedAdam, FedYogi, SCAFFOLD and FreeMatch against their equations written out; momentum that lasts; sBN."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.methods.tiny import (
    CLASSES,
    MEAN,
    client_site,
    generator,
    linear_logits,
    linear_network,
    random_images,
    random_labeled,
    random_theta,
    server_site,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.network import Network
from fedfew.core.types import ClientSite, ClientUpdate
from fedfew.data.samples import Images
from fedfew.methods.alternate import CARRIED
from fedfew.methods.entry import Entry
from fedfew.methods.fedopt import FEDADAM, FEDYOGI, FedAdam
from fedfew.methods.scaffold import Scaffold
from fedfew.methods.semifl import SemiFL
from fedfew.objectives.objective import Batch, Step
from fedfew.objectives.pseudo_labels import FreeMatch
from fedfew.training.label_shift import Adjust, unadjusted
from fedfew.training.sgd import Hooks, LocalSGD, descend
from fedfew.training.supervised import Supervised
from fedfew.transforms import NormPolicy
from fedfew.transforms.norm_policy import AllStatistics

SERVER, CLIENT = Supervised(LocalSGD(lr=0.2)), LocalSGD(lr=0.1, batch=4)


class TowardsImages:
    """½‖θ − t‖² with t drawn by the batch: a gradient that is known and differs from batch to batch."""

    labels: ClassVar[bool] = False

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Adjust = unadjusted) -> Batch:
        def step(indices: Tensor) -> Step:
            theta = torch.cat([p.flatten() for p in site.network.module.parameters()])
            return Step(0.5 * (theta - self.target(indices)).square().sum())

        return step

    @staticmethod
    def target(indices: Tensor) -> Tensor:
        return random_theta(1000 + int(indices.sum()))


def payload_of(omega: Tensor, **more: Tensor) -> Payload:
    return {"omega": omega, "lr": torch.tensor(0.1, dtype=torch.float64), "progress": torch.tensor(0.0), **more}


# FedAdam and FedYogi


@pytest.mark.parametrize(("entry", "rule"), [(FEDADAM, "adam"), (FEDYOGI, "yogi")])
def test_the_servers_step_is_algorithm_2(entry: Entry[FedAdam], rule: str) -> None:
    parts = {"server": SERVER, "client": CLIENT, "aggregator": MEAN, "objective": TowardsImages()}
    method = entry.build(**parts, server_lr=0.05, beta1=0.8, beta2=0.95, tau=0.01, order="before")
    site, omega = server_site(), random_theta(1)
    state = replace(method.start(omega), participation={0: 1, 1: 1})
    x = omega.double().numpy()
    m, v = np.zeros_like(x), np.full_like(x, 0.01**2)
    for t in range(4):
        replies = [random_theta(10 * t + k) for k in (5, 6)]
        state = replace(state, sigma=state.omega)
        state, _ = method.after_clients(
            state, [ClientUpdate(k, {"psi": r}, 5) for k, r in enumerate(replies)], site, generator(0)
        )
        delta = np.mean([r.double().numpy() for r in replies], 0) - x
        m = 0.8 * m + 0.2 * delta
        v = 0.95 * v + 0.05 * delta**2 if rule == "adam" else v - 0.05 * delta**2 * np.sign(v - delta**2)
        x = x + 0.05 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(state.omega.numpy(), x, rtol=1e-4, atol=1e-5)


# SCAFFOLD


def corrected(
    omega: Tensor, order: list[Tensor], correction: Tensor, lr: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """The client's steps written out, and the mean of the gradients it took, each as far as its step carried."""
    theta, velocity, taken = omega.double(), torch.zeros_like(omega).double(), []
    for indices in order:
        gradient = theta - TowardsImages.target(indices).double()
        velocity = momentum * velocity + gradient + correction.double()
        theta = theta - lr * velocity
        taken.append(gradient)
    # how often the i-th gradient is stepped along: 1 + ρ + ρ² + …
    work = [sum(momentum**j for j in range(len(taken) - i)) for i in range(len(taken))]
    mean = sum(w * g for w, g in zip(work, taken, strict=True)) / sum(work)
    return theta.float(), mean.float()  # type: ignore[union-attr]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_clients_steps_are_corrected_and_its_control_becomes_its_mean_gradient(momentum: float) -> None:
    sgd = LocalSGD(lr=0.1, batch=4, momentum=momentum)
    method = Scaffold(SERVER, sgd, MEAN, TowardsImages(), population=20)
    site, omega, c, own = client_site(0), random_theta(1), random_theta(2, 0.1), random_theta(3, 0.1)
    site.memory["control"] = own.clone()

    trained = method.train_client(payload_of(omega, control=c), site, generator(0))

    order = list(torch.randperm(len(site), generator=generator(0)).split(4))
    psi, mean = corrected(omega, order, c - own, 0.1, momentum)
    torch.testing.assert_close(trained.reply["psi"], psi, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(site.memory["control"], mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(trained.reply["control"], mean - own, rtol=1e-3, atol=1e-4)


def test_the_servers_control_is_the_mean_over_all_clients() -> None:
    method = Scaffold(SERVER, CLIENT, MEAN, TowardsImages(), population=20)
    site = server_site()
    state = method.warm_up(method.start(random_theta(1)), site, generator(0))
    assert not method.broadcast(state, 0)["control"].any()
    changes = [random_theta(7), random_theta(8)]
    updates = [ClientUpdate(k, {"psi": random_theta(k), "control": c}, 5, {}) for k, c in enumerate(changes)]
    after, _ = method.after_clients(replace(state, participation={0: 1, 1: 1}), updates, site, generator(1))
    torch.testing.assert_close(after.extra["control"], (changes[0] + changes[1]) / 20)
    assert torch.equal(
        method.broadcast(method.before_clients(after, site, generator(2)), 0)["control"], after.extra["control"]
    )


# FreeMatch


def test_thresholds_follow_the_model_and_the_loss_is_fixmatchs() -> None:
    network, theta = linear_network(), random_theta(1, 1.5)
    site = ClientSite(0, network, Images(random_images(12, 4)), CLASSES)
    network.load(theta)
    step = FreeMatch(decay=0.6, weight=2.0).begin(site, 0.0, generator(0))
    tau, mean, rng = 1 / CLASSES, torch.full((CLASSES,), 1 / CLASSES), generator(0)
    for indices in (torch.arange(6), torch.arange(6, 12)):
        outcome = step(indices)
        p = linear_logits(theta, site.samples.take(indices).weak(rng).data).softmax(1)
        confidence, labels = p.max(1)
        tau = 0.6 * tau + 0.4 * float(confidence.mean())
        mean = 0.6 * mean + 0.4 * p.mean(0)
        keep = confidence >= (mean / mean.max() * tau)[labels]
        assert outcome.keep is not None and torch.equal(outcome.keep, keep) and outcome.loss is not None
        views = Images(site.samples.data[indices][keep]).strong(rng).data
        loss = 2.0 * cross_entropy(linear_logits(theta, views), labels[keep], reduction="sum") / 6
        assert outcome.loss.item() == pytest.approx(float(loss), rel=1e-4)
    torch.testing.assert_close(site.memory["freematch"], torch.cat([mean, torch.tensor([tau])]))


# what the official SemiFL code does


def semifl(**options: Any) -> SemiFL:
    sgd = LocalSGD(lr=0.05, batch=4, momentum=0.9)
    return SemiFL(Supervised(sgd), sgd, MEAN, threshold=0.0, lambda_mix=0.0, **options)


def test_momentum_that_lasts_makes_two_rounds_one() -> None:
    """Two rounds of an epoch from where the last one ended are two epochs of one optimiser."""
    sgd = LocalSGD(lr=0.05, batch=4, momentum=0.9, epochs=2)
    network = linear_network()
    network.load(random_theta(1))
    images, labels = random_images(12, 3), torch.arange(12) % CLASSES

    def loss_of(indices: Tensor) -> Tensor:
        return cross_entropy(network(Images(images[indices])), labels[indices])

    descend(network, sgd, 0.05, 12, loss_of, generator(0))
    at_once, rng = network.snapshot(), generator(0)
    network.load(random_theta(1))
    velocity = torch.zeros(network.layout.trainable)
    for _ in range(2):
        descend(network, replace(sgd, epochs=1), 0.05, 12, loss_of, rng, Hooks(velocity=velocity))
    assert torch.equal(network.snapshot(), at_once)


def test_momentum_is_kept_by_each_client_and_by_the_server() -> None:
    method, site, away = semifl(momentum_lasts=True, warmup=1), client_site(0), server_site()
    state = method.warm_up(method.start(random_theta(1)), away, generator(0))
    assert state.extra[CARRIED].any()
    first = method.train_client(payload_of(random_theta(1)), site, generator(0))
    kept = site.memory[CARRIED].clone()
    assert kept.any()
    second = method.train_client(payload_of(random_theta(1)), site, generator(0))
    assert not torch.equal(first.reply["psi"], second.reply["psi"]), "it goes on with what it kept"
    assert not torch.equal(site.memory[CARRIED], kept)
    forgetful, plain = client_site(0), semifl()
    assert torch.equal(
        plain.train_client(payload_of(random_theta(1)), forgetful, generator(0)).reply["psi"], first.reply["psi"]
    ), "the first round is the same"
    assert CARRIED not in forgetful.memory


def test_static_batch_norm_has_the_statistics_of_all_images() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, CLASSES))
    network = Network.of(module)
    everything = random_labeled(700, 5)
    site = server_site(network=network)
    transform = NormPolicy("clients").transform()
    assert isinstance(transform, AllStatistics) and transform.pools
    with pytest.raises(FedfewError, match=r"E113 norm\.policy"):
        transform.check(site)
    site = replace(site, pool=everything)
    transform.check(site)
    start = semifl().start(network.snapshot())
    after = transform.after_round(start, site)
    network.load(after.omega)
    with torch.no_grad():
        seen = module[0](everything.samples.data.float() / 255)
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, seen.var((0, 2, 3)), rtol=1e-2, atol=1e-3)
