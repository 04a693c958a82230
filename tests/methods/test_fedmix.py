"""FedMix's loss term by term, its readings, and one whole round of Algorithm 1 written out with plain autograd."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.tiny import (
    MEAN,
    client_site,
    generator,
    gradient_of,
    linear_logits,
    linear_network,
    random_images,
    random_theta,
    server_site,
)
from torch import Tensor

import fedfew
from fedfew.aggregators.weighted import fedfreq
from fedfew.core.errors import FedfewError
from fedfew.core.types import ClientSite, ClientUpdate, ServerState
from fedfew.data.samples import Images
from fedfew.methods.fedavg import FedAvg
from fedfew.methods.fedmix import FEDMIX, FedMix, mix
from fedfew.objectives.objective import Step
from fedfew.runtime.rounds import count, server_turn
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised

A = 5


def fedmix(**settings: Any) -> FedMix:
    parts: dict[str, Any] = {
        "server": Supervised(LocalSGD(batch=4, lr=0.2)),
        "client": LocalSGD(batch=5, lr=0.3),
        "aggregator": MEAN,
    }
    return FedMix(**(parts | settings))


def softmaxes(theta: Tensor, images: Tensor, rng: torch.Generator) -> Tensor:
    """A×B×C: what the model says of each view, in the order in which the paper lists them."""
    family = Images(images).views(A, rng)
    return torch.stack([linear_logits(theta, view.data).softmax(1) for view in family])


def hand_loss(
    theta: Tensor, images: Tensor, rng: torch.Generator, threshold: float, l1: float, l2: float
) -> tuple[Tensor, Tensor]:
    """λ_2 Σ_c (p_1 − p_2)², mean over the batch, + λ_1 CE(ŷ, f(u)), mean over the confident; and who is confident."""
    p = softmaxes(theta, images, rng)
    confidence, labels = (p.detach().sum(0) / A).max(1)
    keep = confidence >= threshold
    loss = l2 * ((p[0] - p[1]) ** 2).sum() / len(images)
    if keep.any():
        log_p = linear_logits(theta, images).log_softmax(1)
        chosen = [log_p[i, labels[i]] for i in range(len(images)) if keep[i]]
        loss = loss - l1 * sum(chosen, torch.zeros(())) / len(chosen)
    return loss, keep


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, float]:
    """A model, eight images, and a τ that about half of them reach."""
    theta, images = random_theta(1, 0.4), random_images(8, 2)
    confidence = softmaxes(theta, images, generator(3)).mean(0).max(1).values
    return theta, images, float(confidence.sort().values[3:5].mean())


def test_consistency_is_summed_over_classes_and_averaged_over_the_batch(batch: tuple[Tensor, Tensor, float]) -> None:
    theta, images, tau = batch
    network = linear_network()
    network.load(theta)
    method = fedmix(lambda_ce=0.0, lambda_consistency=2.0, threshold=tau)

    loss, _, _ = method.loss(network, Images(images), generator(3))
    loss.backward()

    p = softmaxes(theta, images, generator(3))
    assert float(loss.detach()) == pytest.approx(2.0 * float(((p[0] - p[1]) ** 2).sum()) / 8, rel=1e-5)
    variable = theta.clone().requires_grad_()
    p = softmaxes(variable, images, generator(3))
    both = gradient_of(2.0 * ((p[0] - p[1]) ** 2).sum(1).mean(), variable)
    torch.testing.assert_close(network.gradient, both, rtol=1e-4, atol=1e-6)
    one_sided = gradient_of(
        2.0 * ((p[0].detach() - softmaxes(variable, images, generator(3))[1]) ** 2).sum(1).mean(), variable
    )
    assert not torch.allclose(network.gradient, one_sided, atol=1e-4), "the gradient goes through both views"


@pytest.mark.parametrize("ce_over", ["confident", "batch"])
def test_cross_entropy_is_on_the_plain_image_over_the_confident(
    batch: tuple[Tensor, Tensor, float], ce_over: Any
) -> None:
    theta, images, tau = batch
    network = linear_network()
    network.load(theta)
    method = fedmix(lambda_ce=3.0, lambda_consistency=0.0, threshold=tau, ce_over=ce_over)

    loss, labels, keep = method.loss(network, Images(images), generator(3))
    loss.backward()

    mean = softmaxes(theta, images, generator(3)).mean(0)
    assert labels.tolist() == mean.argmax(1).tolist()
    assert keep.tolist() == (mean.max(1).values >= tau).tolist() and int(keep.sum()) == 4
    variable = theta.clone().requires_grad_()
    log_p = linear_logits(variable, images).log_softmax(1)
    total = -sum((log_p[i, labels[i]] for i in range(8) if keep[i]), torch.zeros(()))
    expected = 3.0 * total / (4 if ce_over == "confident" else 8)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(network.gradient, gradient_of(expected, variable), rtol=1e-4, atol=1e-6)


def test_the_mask_can_look_at_view_one_alone(batch: tuple[Tensor, Tensor, float]) -> None:
    theta, images, _ = batch
    network = linear_network()
    network.load(theta)
    first = softmaxes(theta, images, generator(3))[0].max(1).values
    tau = float(first.sort().values[3:5].mean())
    _, labels, keep = fedmix(threshold=tau, mask_on="first").loss(network, Images(images), generator(3))
    assert keep.tolist() == (first >= tau).tolist()
    assert labels[keep].tolist() == softmaxes(theta, images, generator(3)).mean(0).argmax(1)[keep].tolist()


def test_two_views_are_enough_to_vote(batch: tuple[Tensor, Tensor, float]) -> None:
    theta, images, _ = batch
    network = linear_network()
    network.load(theta)
    _, labels, _ = fedmix(views=2).loss(network, Images(images), generator(3))
    pair = Images(images).views(2, generator(3))
    assert labels.tolist() == sum(linear_logits(theta, view.data).softmax(1) for view in pair).argmax(1).tolist()  # type: ignore[union-attr]


def test_a_client_descends_on_all_three_terms(batch: tuple[Tensor, Tensor, float]) -> None:
    _, _, tau = batch
    site, omega, sigma = client_site(0), random_theta(1, 0.4), random_theta(7)
    method = fedmix(lambda_ce=0.7, lambda_consistency=1.3, lambda_anchor=0.11, threshold=tau)
    payload = {"omega": omega, "sigma": sigma, "lr": torch.tensor(0.3, dtype=torch.float64)}

    trained = method.train_client(payload, site, generator(4))

    psi, votes = hand_client(omega, sigma, site, generator(4), tau, 0.3, (0.7, 1.3, 0.11))
    torch.testing.assert_close(trained.reply["psi"], psi, rtol=0, atol=1e-6)
    assert trained.votes is not None and (trained.votes >= 0).tolist() == votes.tolist()
    assert trained.metrics == {"coverage": float(votes.float().mean()), "steps": 3.0}


def hand_client(
    omega: Tensor,
    sigma: Tensor,
    site: ClientSite,
    rng: torch.Generator,
    tau: float,
    lr: float,
    lambdas: tuple[float, ...],
) -> tuple[Tensor, Tensor]:
    """ψ after one epoch in batches of 5, and which images had a confident label."""
    l1, l2, anchor = lambdas
    psi, confident = omega.clone(), torch.zeros(len(site), dtype=torch.bool)
    for indices in torch.randperm(len(site), generator=rng).split(5):
        psi = psi.requires_grad_()
        loss, keep = hand_loss(psi, site.samples.data[indices], rng, tau, l1, l2)
        loss = loss + anchor * ((sigma - psi) ** 2).sum()
        psi, confident[indices] = (psi - lr * gradient_of(loss, psi)).detach(), keep
    return psi, confident


def hand_server(omega: Tensor, images: Tensor, labels: Tensor, rng: torch.Generator, lr: float, l_s: float) -> Tensor:
    sigma = omega.clone()
    for indices in torch.randperm(len(images), generator=rng).split(4):
        sigma = sigma.requires_grad_()
        log_p = linear_logits(sigma, images[indices]).log_softmax(1)
        loss = -l_s * log_p[torch.arange(len(indices)), labels[indices]].mean()
        sigma = (sigma - lr * gradient_of(loss, sigma)).detach()
    return sigma


def test_one_round_of_algorithm_1_by_hand(batch: tuple[Tensor, Tensor, float]) -> None:
    """Server, two clients of which one has been here four times before, FedFreq and the mix, all written out."""
    tau, alpha, beta, gamma = batch[2], 0.5, 0.3, 0.2
    lambdas = (0.7, 1.3, 0.11)  # λ_1, λ_2, λ_L1
    method = fedmix(
        alpha=alpha, beta=beta, gamma=gamma, threshold=tau, lambda_s=2.0, aggregator=fedfreq,
        lambda_ce=lambdas[0], lambda_consistency=lambdas[1], lambda_anchor=lambdas[2],
    )  # fmt: skip
    server, clients, omega = server_site(), [client_site(3), client_site(8)], random_theta(1, 0.4)

    state = replace(method.start(omega), sigma=random_theta(77), participation={8: 4})  # the last σ plays no part
    state = server_turn(method, state, server, generator(10))
    trained = {
        s.client: method.train_client(method.broadcast(state, s.client), s, generator(s.client)) for s in clients
    }
    updates = [ClientUpdate(k, t.reply, 12, t.metrics) for k, t in trained.items()]
    done, outcome = method.after_clients(
        replace(state, participation=count(state, updates)), updates, server, generator(11)
    )

    sigma = hand_server(omega, server.labeled.samples.data, server.labeled.labels, generator(10), 0.2, 2.0)
    psi = {s.client: hand_client(omega, sigma, s, generator(s.client), tau, 0.3, lambdas) for s in clients}
    q = {3: 1, 8: 5}  # this round counts
    w = {k: 1 - q[k] / 6 for k in q}  # m − 1 = 1
    mean = w[3] * psi[3][0] + w[8] * psi[8][0]
    expected = alpha * mean + beta * sigma + gamma * omega
    torch.testing.assert_close(state.sigma, sigma, rtol=0, atol=1e-6)
    torch.testing.assert_close(done.omega, expected, rtol=0, atol=1e-6)
    assert outcome.weights == pytest.approx({3: 5 / 6, 8: 1 / 6})
    assert any(0 < int(votes.sum()) < 12 for _, votes in psi.values()), "some images must be confident, some not"

    # what this test would notice
    swapped = beta * mean + alpha * sigma + gamma * omega
    by_count = alpha * (w[8] * psi[3][0] + w[3] * psi[8][0]) + beta * sigma + gamma * omega
    assert (done.omega - swapped).abs().max() > 1e-3
    assert (done.omega - by_count).abs().max() > 1e-4


def test_clients_start_from_omega_and_not_from_the_trained_sigma() -> None:
    method = fedmix(lambda_ce=0.0, lambda_consistency=0.0, lambda_anchor=0.0)
    server, omega = server_site(), random_theta(1)
    state = method.warm_up(method.start(omega), server, generator(0))
    assert torch.equal(state.omega, omega) and not torch.equal(state.sigma, omega)
    payload = method.broadcast(state, 0)
    assert torch.equal(payload["omega"], omega)
    assert torch.equal(method.train_client(payload, client_site(0), generator(1)).reply["psi"], omega)


def test_alpha_one_is_the_aggregator_alone_and_gamma_one_leaves_omega() -> None:
    omega, sigma, psi = random_theta(1), random_theta(2), random_theta(3)
    state = ServerState(0, omega, sigma, participation={0: 1})
    updates = [ClientUpdate(0, {"psi": psi}, 3)]

    def after(alpha: float, beta: float, gamma: float) -> Tensor:
        method = fedmix(alpha=alpha, beta=beta, gamma=gamma)
        return method.after_clients(state, updates, server_site(), generator(0))[0].omega

    assert torch.equal(after(1.0, 0.0, 0.0), psi)
    assert torch.equal(after(0.0, 1.0, 0.0), sigma)
    assert torch.equal(after(0.0, 0.0, 1.0), omega)


def test_the_anchor_is_this_rounds_sigma_the_last_ones_or_omega() -> None:
    server, omega = server_site(), random_theta(1)

    def two_rounds(method: FedMix) -> tuple[ServerState, ServerState, dict[str, Tensor]]:
        first = method.warm_up(method.start(omega), server, generator(0))
        updates = [ClientUpdate(0, {"psi": random_theta(5)}, 3)]
        done, _ = method.after_clients(replace(first, participation={0: 1}), updates, server, generator(0))
        second = method.before_clients(replace(done, round=1), server, generator(1))
        return first, second, method.broadcast(second, 0)

    first, second, payload = two_rounds(fedmix(anchor="trained"))
    assert not torch.equal(first.sigma, second.sigma)
    assert torch.equal(payload["sigma"], second.sigma)
    first, _, payload = two_rounds(fedmix(anchor="previous"))
    assert torch.equal(payload["sigma"], first.sigma)
    assert "sigma" not in two_rounds(fedmix(anchor="omega"))[2]
    assert "sigma" not in two_rounds(fedmix(lambda_anchor=0.0))[2], "what nobody reads does not travel"
    started = fedmix(anchor="previous")
    state = started.warm_up(started.start(omega), server, generator(0))
    assert torch.equal(started.broadcast(state, 0)["sigma"], omega), "before the first round σ_0 = ω_0"


@dataclass(frozen=True)
class FedMixObjective:
    """FedMix's two data terms as an objective of FedAvg's clients."""

    method: FedMix
    labels: ClassVar[bool] = True

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Any = None) -> Any:
        return lambda indices: Step(*self.method.loss(site.network, site.samples.take(indices), rng))


def test_anchor_omega_is_fedprox_with_twice_lambda() -> None:
    method, omega = fedmix(anchor="omega", lambda_anchor=0.4, threshold=0.4), random_theta(1)
    lr = torch.tensor(0.3, dtype=torch.float64)
    ours = method.train_client({"omega": omega, "lr": lr}, client_site(0), generator(2))

    def prox(mu: float) -> Tensor:
        fedprox = FedAvg(method.server, method.client, MEAN, FedMixObjective(method), prox=mu)
        payload = {"omega": omega, "lr": lr, "progress": torch.tensor(0.0)}
        return fedprox.train_client(payload, client_site(0), generator(2)).reply["psi"]

    assert torch.equal(ours.reply["psi"], prox(0.8))
    assert not torch.allclose(ours.reply["psi"], prox(0.4), atol=1e-4)


def test_the_step_size_of_the_round_travels_to_the_client() -> None:
    method = fedmix(client=LocalSGD(lr=0.3, schedule="cosine", rounds=10))
    state = replace(method.warm_up(method.start(random_theta(1)), server_site(), generator(0)), round=5)
    assert float(method.broadcast(state, 0)["lr"]) == pytest.approx(0.15)


def test_defaults_are_the_papers() -> None:
    method = fedmix()
    assert (method.alpha, method.beta, method.gamma) == (0.5, 0.3, 0.2)
    assert (method.views, method.threshold, FEDMIX.aggregator) == (5, 0.8, "fedfreq")
    assert LocalSGD() == LocalSGD(epochs=1, batch=64, lr=1e-3, momentum=0, weight_decay=0, rounds=150)


PSI, SIGMA, OMEGA = (torch.tensor([x]) for x in (5.0, 20.0, 10.0))


def test_the_papers_weights_on_5_20_10() -> None:
    # 0.5·5 + 0.3·20 + 0.2·10 = 2.5 + 6 + 2
    assert mix(PSI, SIGMA, OMEGA, 0.5, 0.3, 0.2).item() == pytest.approx(10.5)
    # were α and β exchanged it would be 0.3·5 + 0.5·20 + 2 = 13.5, were β and γ 2.5 + 4 + 3 = 9.5
    assert mix(PSI, SIGMA, OMEGA, 0.3, 0.5, 0.2).item() == pytest.approx(13.5)
    assert mix(PSI, SIGMA, OMEGA, 0.5, 0.2, 0.3).item() == pytest.approx(9.5)
    assert fedfew.mix is mix


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
def test_gamma_only_damps_the_way_towards_psi_and_sigma(first: float, second: float, seed: int) -> None:
    low, high = sorted((first, second))
    alpha, beta = low, high - low
    psi, sigma, omega = torch.randn(3, 6, dtype=torch.float64, generator=generator(seed))

    step = mix(psi, sigma, omega, alpha, beta, 1 - high) - omega

    torch.testing.assert_close(step, alpha * (psi - omega) + beta * (sigma - omega))


@pytest.mark.parametrize(
    "weights",
    [
        (0.5, 0.3, 0.3),
        (0.5, 0.3, 0.1),
        (1.2, -0.2, 0.0),
        (0.5, 0.6, -0.1),
        (float("nan"), 0.5, 0.5),
        (0.5, 0.5, float("inf")),
    ],
)
def test_weights_that_do_not_sum_to_one_are_refused(weights: tuple[float, float, float]) -> None:
    with pytest.raises(FedfewError, match=r"E106 method.alpha, method.beta, method.gamma: .* not to 1 with all ≥ 0"):
        mix(PSI, SIGMA, OMEGA, *weights)
