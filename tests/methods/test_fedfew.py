"""fedfew's own method: a client step derived by hand, what its class mix does to the loss, the mean over rounds."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from tests.methods.tiny import (
    CLASSES,
    MEAN,
    client_site,
    generator,
    gradient_of,
    linear_logits,
    linear_network,
    random_theta,
    server_site,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.types import ClientSite, ClientUpdate
from fedfew.data.samples import Images
from fedfew.methods.fedfew import FedFew
from fedfew.training.label_shift import log_ratio
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, train_server

ONE_STEP = LocalSGD(epochs=1, batch=100, lr=0.1)
EVEN = torch.full((CLASSES,), 1 / CLASSES)


def fedfew(**options: Any) -> FedFew:
    settings: dict[str, Any] = {"threshold": 0.0, "warmup": 2} | options
    return FedFew(Supervised(ONE_STEP), ONE_STEP, MEAN, **settings)


def payload(theta: Tensor) -> dict[str, Tensor]:
    return {"omega": theta, "prior": EVEN, "lr": torch.tensor(0.1, dtype=torch.float64)}


def labelled(method: FedFew, site: ClientSite, theta: Tensor) -> tuple[Tensor, Tensor, torch.Generator]:
    """r and π_k as the client finds them, and its generator afterwards."""
    rng, network = generator(7), linear_network()
    network.load(theta)
    return *method.label(replace(site, network=network), payload(theta), rng), rng


def test_the_ratio_of_two_mixes() -> None:
    shift = log_ratio(torch.tensor([0.5, 0.25, 0.25, 0.0]), torch.tensor([0.25, 0.5, 0.25, 0.0]))
    assert shift.tolist() == pytest.approx([log(2), -log(2), 0.0, 0.0])


@pytest.mark.parametrize(("correction", "soft"), [(0.0, False), (1.0, False), (0.5, False), (1.0, True)])
def test_a_client_step_is_the_equation(correction: float, soft: bool) -> None:
    """With hard labels, or with the adjusted probabilities as they are."""
    method, site = fedfew(steps=20, concentration=1.0, correction=correction, soft=soft), client_site(0)
    theta = random_theta(1)
    trained = method.train_client(payload(theta), site, generator(7))

    adjusted, mix, rng = labelled(method, site, theta)
    labels = adjusted.argmax(1)
    order = torch.randperm(len(site), generator=rng)
    views = site.samples.take(order).strong(rng).data
    free = theta.clone().requires_grad_()
    logits = linear_logits(free, views) + correction * (mix / EVEN).log()
    loss = cross_entropy(logits, (adjusted if soft else labels)[order])
    torch.testing.assert_close(trained.reply["psi"], theta - 0.1 * gradient_of(loss, free), rtol=1e-4, atol=1e-6)
    assert trained.votes is not None
    assert torch.equal(trained.votes, labels)


@pytest.mark.parametrize("threshold", [0.0, 0.6, 1.0])
def test_consistency_adds_the_agreement_of_two_noisy_views_of_every_image(threshold: float) -> None:
    method, site = fedfew(steps=20, consistency=3.0, threshold=threshold), client_site(0)
    theta = random_theta(1)
    trained = method.train_client(payload(theta), site, generator(7))

    adjusted, mix, rng = labelled(method, site, theta)
    confidence, labels = adjusted.max(1)
    order = torch.randperm(len(site), generator=rng)
    one, other = (site.samples.take(order).weak(rng).noisy(0.1, rng).data for _ in range(2))
    free = theta.clone().requires_grad_()
    gap = linear_logits(free, one).softmax(1) - linear_logits(free, other).softmax(1)
    loss = 3.0 * gap.square().sum(1).mean()
    sure = order[confidence[order] >= threshold]
    assert (len(sure) == 0) == (threshold == 1.0) and (len(sure) < len(site)) == (threshold > 0)
    if len(sure):
        logits = linear_logits(free, site.samples.take(sure).strong(rng).data) + (mix / EVEN).log()
        loss = loss + cross_entropy(logits, labels[sure], reduction="sum") / len(site)
    expected = theta - 0.1 * gradient_of(loss, free)
    torch.testing.assert_close(trained.reply["psi"], expected, rtol=1e-4, atol=1e-6)
    assert trained.metrics["coverage"] == len(sure) / len(site)


def moved(monkeypatch: pytest.MonkeyPatch, **options: Any) -> float:
    """How far a client goes from a model whose word it takes, if views play no part."""
    for view in ("weak", "strong"):
        monkeypatch.setattr(Images, view, lambda images, *given: images)
    theta = random_theta(1)
    reply = fedfew(steps=20, **options).train_client(payload(theta), client_site(0), generator(7)).reply
    return float((reply["psi"] - theta).norm())


def test_a_soft_target_with_the_whole_class_mix_in_the_loss_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """r = softmax(z + log π_k/π_s) is what softmax(z + κ log π_k/π_s) says already at κ = 1: ∇CE(r, r) = 0."""
    assert moved(monkeypatch, soft=True, correction=1.0) < 1e-6
    for learns in ({"soft": True, "correction": 0.0}, {"soft": False, "correction": 1.0}):
        assert moved(monkeypatch, **learns) > 1e-3


def test_a_temperature_of_zero_is_found_from_the_accuracy_in_validation() -> None:
    method, site, theta = fedfew(temperature=0.0), client_site(0), random_theta(1)
    site.network.load(theta)
    state = replace(method.warm_up(method.start(theta), server_site(), generator(1)), validation=(0.9, 0.45))
    assert float(method.broadcast(state, 0)["accuracy"]) == 0.45
    adjusted, _ = method.label(site, payload(theta) | {"accuracy": torch.tensor(0.45)}, generator(2))
    assert float(adjusted.amax(1).mean()) == pytest.approx(0.45, abs=1e-4)


@pytest.mark.parametrize("validation", [(), (0.5, 0.0)])
def test_without_validation_images_the_temperature_is_one(validation: tuple[float, ...]) -> None:
    free, given = fedfew(temperature=0.0), fedfew(temperature=1.0)
    theta, site = random_theta(1), client_site(0)
    state = replace(free.warm_up(free.start(theta), server_site(), generator(1)), validation=validation)
    message = free.broadcast(state, 0)
    assert "accuracy" not in message
    first, second = (m.train_client(message, site, generator(2)).reply["psi"] for m in (free, given))
    assert torch.equal(first, second)


def test_without_em_the_mix_is_the_servers_and_changes_nothing() -> None:
    theta, site = random_theta(1), client_site(0)
    with_, without = (
        fedfew(correction=kappa).train_client(payload(theta), site, generator(7)).reply["psi"] for kappa in (1.0, 0.0)
    )
    torch.testing.assert_close(with_, without, rtol=1e-5, atol=1e-7)


def test_omega_is_the_mean_over_rounds_and_sigma_goes_on_by_itself() -> None:
    method, site = fedfew(average=0.75), server_site()
    state = method.warm_up(method.start(random_theta(2)), site, generator(1))
    warm = state.sigma
    assert not torch.equal(warm, state.omega)
    psi = random_theta(3)
    update = ClientUpdate(0, {"psi": psi}, 12, {"steps": 1.0})
    first, _ = method.after_clients(replace(state, participation={0: 1}), [update], site, generator(2))
    sigma = train_server(method.server, psi, state, site, generator(2), 1.0)
    torch.testing.assert_close(first.omega, 0.75 * warm + 0.25 * sigma)
    second = method.before_clients(replace(first, round=1), site, generator(3))
    assert torch.equal(second.sigma, sigma)  # the clients go on from σ, not from the mean
    third, _ = method.after_clients(second, [], site, generator(4))
    torch.testing.assert_close(third.omega, 0.75 * first.omega + 0.25 * third.extra["sigma"])


def test_without_a_mean_omega_is_sigma() -> None:
    method, site = fedfew(), server_site()
    state = method.warm_up(method.start(random_theta(2)), site, generator(1))
    after, _ = method.after_clients(state, [], site, generator(2))
    assert "sigma" not in after.extra
    second = replace(after, round=1, participation={0: 1})
    assert torch.equal(method.before_clients(second, site, generator(3)).sigma, after.omega)


def test_the_teacher_labels_and_the_newest_model_learns() -> None:
    """teacher = "start": later rounds send the first model too, and clients label by it alone."""
    method, site, theta, first = fedfew(teacher="start"), client_site(0), random_theta(1), random_theta(5)
    server = server_site()
    state = method.warm_up(method.start(first), server, generator(0))
    assert torch.equal(state.extra["teacher"], state.sigma)
    later = replace(state, sigma=theta, participation={0: 1})
    message = method.broadcast(later, 0)
    assert torch.equal(message["teacher"], state.sigma) and torch.equal(message["omega"], theta)
    assert torch.equal(method.before_clients(later, server, generator(0)).extra["teacher"], state.sigma)

    labeled = method.train_client(message, site, generator(7))
    alone = method.train_client(payload(state.sigma), site, generator(7))
    assert labeled.votes is not None and alone.votes is not None
    assert torch.equal(labeled.votes, alone.votes)
    assert not torch.equal(labeled.reply["psi"], alone.reply["psi"])
