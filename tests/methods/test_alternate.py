"""SemiFL and (FL)²: their equations, their gradients, and what happens when nobody is sure."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.methods.tiny import generator as seeded
from tests.methods.tiny import linear_network as net
from tests.methods.tiny import random_images as images
from tests.methods.tiny import theta
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from fedfew.aggregators import AGGREGATORS
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, Method, ServerSite
from fedfew.data.samples import Images
from fedfew.methods.fl2 import FL2, FLOOR, ascent_step, class_thresholds
from fedfew.methods.semifl import SemiFL
from fedfew.objectives.pseudo_labels import beta_draw
from fedfew.runtime.rounds import server_turn
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, train_server

SGD = LocalSGD(epochs=2, batch=3, lr=0.05)


def client(network: Network, count: int = 8, seed: int = 1) -> ClientSite:
    return ClientSite(0, network, Images(images(count, seed), flips=False), 3)


def server(network: Network) -> ServerSite:
    return ServerSite(network, LabeledSet(Images(images(6, 9), flips=False), torch.arange(6) % 3), 3)


def semifl(**options: Any) -> SemiFL:
    return SemiFL(Supervised(SGD), SGD, AGGREGATORS["uniform"], **options)


def fl2(**options: Any) -> FL2:
    return FL2(Supervised(SGD), SGD, AGGREGATORS["status"], **options)


def payload(omega: Tensor) -> dict[str, Tensor]:
    return {"omega": omega, "lr": torch.tensor(0.05, dtype=torch.float64)}


# SemiFL


def test_semifl_loss_is_its_equation() -> None:
    network = net()
    network.load(theta(network))
    site, rng = client(network), seeded(5)
    fix, mix, labels = torch.tensor([0, 3, 4]), torch.tensor([7, 3, 1]), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    ours = semifl(lambda_mix=0.7).loss(site, fix, mix, labels, seeded(5))
    fixed = cross_entropy(network(site.samples.take(fix).strong(rng)), labels[fix])
    lam = float(beta_draw(0.75, 1, rng))
    x = lam * site.samples.take(fix).weak(rng).data.float() + (1 - lam) * site.samples.take(mix).weak(rng).data.float()
    logits = network(Images(x))
    mixed = lam * cross_entropy(logits, labels[fix]) + (1 - lam) * cross_entropy(logits, labels[mix])
    assert ours.item() == pytest.approx((fixed + 0.7 * mixed).item(), rel=1e-5)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_both_terms_of_semifl_have_a_gradient(weight: float) -> None:
    network = net()
    network.load(theta(network))
    site, labels, every = client(network), torch.arange(8) % 3, torch.arange(8)
    network.gradient.zero_()
    semifl(lambda_mix=weight).loss(site, every, every, labels, seeded(5)).backward()
    assert float(network.gradient.norm()) > 1e-3


def test_semifl_labels_once_with_the_received_model() -> None:
    network = net()
    omega, site = theta(network), client(network)
    trained = semifl(threshold=0.6).train_client(payload(omega), site, seeded(2))
    network.load(omega)
    confidence, labels = network.probabilities(site.samples.weak(seeded(2))).max(1)
    assert trained.votes is not None
    assert trained.votes.tolist() == torch.where(confidence >= 0.6, labels, -1).tolist()
    kept = int((confidence >= 0.6).sum())
    assert 0 < kept < 8
    assert trained.metrics == {"coverage": kept / 8, "steps": 2.0 * -(-kept // 3)}
    assert not torch.equal(trained.reply["psi"], omega)


@pytest.mark.parametrize("count", [8, 0])
def test_a_client_that_is_sure_of_nothing_sends_what_it_got_and_is_left_out(count: int) -> None:
    network = net()
    omega = theta(network, 1e-3)
    for method in (semifl(), fl2()):
        site = client(network, count)
        trained = method.train_client(payload(omega), site, seeded(2))
        if isinstance(method, SemiFL) or not count:
            assert trained.metrics["steps"] == 0
            assert torch.equal(trained.reply["psi"], omega)
        assert torch.isfinite(trained.reply["psi"]).all()


def finish(method: Method, network: Network, psis: list[tuple[Tensor, dict[str, float]]], rounds: int = 1) -> Any:
    """Rounds in which the clients send the same change every time."""
    site = server(network)
    state = method.start(theta(network))
    for t in range(rounds):
        state = server_turn(method, replace(state, round=t), site, seeded(t))
        sent = method.broadcast(state, 0)["omega"]
        updates = [ClientUpdate(k, {"psi": sent + d}, 5, m) for k, (d, m) in enumerate(psis)]
        state = replace(state, participation=dict.fromkeys(range(len(psis)), t + 1))
        before = state
        state, outcome = method.after_clients(before, updates, site, seeded(100 + t))
    return before, state, site, outcome


@pytest.mark.parametrize("make", [semifl, fl2])
@pytest.mark.parametrize("epochs", [0, 4])
def test_the_server_trains_after_every_aggregation_and_before_the_first_round_only_if_asked(
    make: Any, epochs: int
) -> None:
    network = net()
    method = make(server_momentum=0.0, warmup=epochs)
    ones = torch.ones(network.layout.size)
    before, state, site, _ = finish(method, network, [(ones, {"steps": 2.0}), (3 * ones, {"steps": 1.0})])
    start = theta(network)
    warmed = train_server(method.server, start, replace(state, round=0), site, seeded(0), 1.0, epochs)
    assert torch.equal(before.sigma, warmed if epochs else start), "as published, the clients come first"
    middle = before.sigma + 2 * ones
    expected = train_server(method.server, middle, replace(before, round=0), site, seeded(100))
    assert torch.allclose(state.omega, expected, atol=1e-6)


def test_clients_that_took_no_step_do_not_count() -> None:
    network = net()
    ones = torch.ones(network.layout.size)
    method = semifl(server_momentum=0.0)
    before, state, site, outcome = finish(method, network, [(ones, {"steps": 2.0}), (99 * ones, {"steps": 0.0})])
    assert outcome.weights == {0: 1.0}
    expected = train_server(method.server, before.sigma + ones, replace(before, round=0), site, seeded(100))
    assert torch.allclose(state.omega, expected, atol=1e-6)
    nobody, after, site, _ = finish(method, network, [(ones, {"steps": 0.0})])
    assert torch.equal(after.omega, train_server(method.server, nobody.sigma, nobody, site, seeded(100)))


def test_server_momentum_carries_on() -> None:
    network = net()
    ones = torch.ones(network.layout.size)
    method = semifl(server_momentum=0.5, lambda_s=0.0)  # without server loss ω moves by the clients alone
    before, state, *_ = finish(method, network, [(-ones, {"steps": 1.0})], rounds=3)
    # v: 1, then ½ + 1, then ¾ + 1
    assert torch.allclose(state.extra["velocity"], 1.75 * ones)
    assert torch.allclose(state.omega, before.sigma - 1.75, atol=1e-5)


# (FL)²


def test_class_thresholds_by_hand() -> None:
    p = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.1, 0.3], [0.1, 0.7, 0.2]])
    thresholds, tau = class_thresholds(p)
    assert tau == pytest.approx((0.8 + 0.6 + 0.7) / 3)
    mean = [1.5 / 3, 1.0 / 3, 0.5 / 3]
    assert thresholds.tolist() == pytest.approx([tau * m / mean[0] for m in mean])


def test_fl2_keeps_by_class_and_reports_its_status() -> None:
    network = net()
    omega, site = theta(network), client(network)
    trained = fl2().train_client(payload(omega), site, seeded(2))
    network.load(omega)
    p = network.probabilities(site.samples.weak(seeded(2)))
    thresholds, tau = class_thresholds(p)
    confidence, labels = p.max(1)
    assert trained.votes is not None
    assert trained.votes.tolist() == torch.where(confidence >= thresholds[labels], labels, -1).tolist()
    assert trained.metrics["status"] == pytest.approx(tau)


def test_the_ascent_step_is_asams() -> None:
    network = net()
    network.load(theta(network))
    network.gradient.copy_(theta(network, 1.0, 8))
    w, g = network.vector, network.gradient
    scale = torch.cat([w[:192].abs() + FLOOR, torch.ones(3)])  # the weight matrix adapts, the bias does not
    expected = 0.1 * scale**2 * g / (scale * g).norm()
    assert torch.allclose(ascent_step(network, 0.1), expected, atol=1e-6)
    assert float((ascent_step(network, 0.1) / scale).norm()) == pytest.approx(0.1, rel=1e-4)


def test_the_sharpness_term_adds_the_divergences_gradient_at_the_ascent_step_and_leaves_the_weights() -> None:
    network = net()
    w = theta(network)
    network.load(w)
    views, targets = images(5, 4), torch.tensor([0, 1, 2, 0, 1])
    certain = torch.tensor([True, False, True, True, False])
    network.gradient.zero_()
    fl2(rho=0.3, lambda_sharp=2.0).add_sharpness(network, Images(views), targets, certain)
    ours = network.gradient.clone()
    assert torch.equal(network.vector, w)

    other = net()
    other.load(w)
    goal = other(Images(views[certain])).detach().softmax(1)
    other.gradient.zero_()
    cross_entropy(other(Images(views[certain])), targets[certain]).backward()
    other.load(w + ascent_step(other, 0.3))
    other.gradient.zero_()
    (2.0 * kl_div(other(Images(views[certain])).log_softmax(1), goal, reduction="sum") / 5).backward()
    assert float(ours.norm()) > 1e-4
    assert torch.allclose(ours, other.gradient, atol=1e-6)


def test_without_certain_images_there_is_no_sharpness_term() -> None:
    network = net()
    network.load(theta(network))
    network.gradient.zero_()
    fl2().add_sharpness(network, Images(images(3, 4)), torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.bool))
    assert float(network.gradient.norm()) == 0


def test_fl2_weighs_by_status() -> None:
    network = net()
    ones = torch.ones(network.layout.size)
    changes = [(ones, {"steps": 1.0, "status": 0.9}), (ones, {"steps": 1.0, "status": 0.7})]
    *_, outcome = finish(fl2(), network, changes)
    assert outcome.weights == pytest.approx({0: 0.25, 1: 0.75})


@pytest.mark.parametrize("make", [semifl, fl2])
def test_the_warm_up_is_as_long_as_it_says(make: Any) -> None:
    network = net()
    method, site = make(warmup=7), server(network)
    state = method.warm_up(method.start(theta(network)), site, seeded(0))
    long = replace(method.server, sgd=replace(SGD, epochs=7))
    assert torch.equal(state.sigma, train_server(long, theta(network), method.start(theta(network)), site, seeded(0)))
    later = method.before_clients(replace(state, round=1, participation={0: 1}), site, seeded(0))
    assert torch.equal(later.sigma, state.omega), "only before the first round"
    skipped = server_turn(method, replace(method.start(theta(network)), round=1), site, seeded(0))
    assert torch.equal(skipped.sigma, state.sigma), "a first round in which nobody answered takes nothing away"
