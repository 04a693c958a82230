"""FedAvg and FedProx with unlabeled clients: where everyone starts, what is averaged, and when the server trains."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from tests.methods.tiny import (
    client_site,
    generator,
    gradient_of,
    linear_logits,
    random_theta,
    server_site,
)
from torch import Tensor

from fedfew.aggregators.weighted import fedavg as by_images
from fedfew.core.layout import Payload
from fedfew.core.types import ClientSite, ClientUpdate
from fedfew.methods.fedavg import FEDPROX, FedAvg
from fedfew.objectives.objective import Step
from fedfew.objectives.pseudo_labels import PseudoLabel
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, train_supervised

SERVER, CLIENT = Supervised(LocalSGD(lr=0.2, batch=4)), LocalSGD(lr=0.1, batch=64)


@dataclass(frozen=True)
class TowardsZero:
    """½‖θ‖² as an objective: its gradient is θ, so a step is known without any data."""

    labels: ClassVar[bool] = False

    def begin(self, site: ClientSite, progress: float, rng: torch.Generator, adjust: Any = None) -> Any:
        return lambda indices: Step(0.5 * sum(p.square().sum() for p in site.network.module.parameters()))  # type: ignore[arg-type]


def fedavg(**settings: Any) -> FedAvg:
    parts: dict[str, Any] = {"server": SERVER, "client": CLIENT, "aggregator": by_images, "objective": TowardsZero()}
    return FedAvg(**(parts | settings))


def payload_of(omega: Tensor, progress: float = 0.0) -> Payload:
    return {"omega": omega, "lr": torch.tensor(0.1, dtype=torch.float64), "progress": torch.tensor(progress)}


def test_the_server_trains_first_and_the_clients_start_from_its_model() -> None:
    method, site, omega = fedavg(lambda_s=2.0), server_site(), random_theta(1)
    begun = replace(method.start(omega), sigma=random_theta(77))  # the last σ plays no part
    state = method.warm_up(begun, site, generator(0))

    sigma, _ = train_supervised(site.network, omega, site.labeled, SERVER, 0.2, generator(0), scale=2.0)
    assert torch.equal(state.sigma, sigma) and torch.equal(method.broadcast(state, 0)["omega"], sigma)
    assert torch.equal(state.omega, omega)


def test_omega_becomes_the_mean_weighted_by_images() -> None:
    method, site = fedavg(order="before"), server_site()
    state = method.warm_up(method.start(random_theta(1)), site, generator(0))
    vectors = {0: random_theta(5), 1: random_theta(6)}
    updates = [ClientUpdate(k, {"psi": vectors[k]}, n) for k, n in ((0, 30), (1, 10))]

    done, outcome = method.after_clients(replace(state, participation={0: 1, 1: 1}), updates, site, generator(1))

    assert outcome.clients is done.omega, "nothing comes after the clients"
    torch.testing.assert_close(done.omega, 0.75 * vectors[0] + 0.25 * vectors[1])
    assert outcome.weights == pytest.approx({0: 0.75, 1: 0.25})


def test_order_after_trains_on_the_aggregate_and_once_before_the_first_round() -> None:
    method, site, omega = fedavg(), server_site(), random_theta(1)
    first = method.warm_up(method.start(omega), site, generator(0))
    assert torch.equal(first.sigma, train_supervised(site.network, omega, site.labeled, SERVER, 0.2, generator(0))[0])

    psi = random_theta(5)
    done, outcome = method.after_clients(
        replace(first, participation={0: 1}), [ClientUpdate(0, {"psi": psi}, 3)], site, generator(1)
    )
    assert torch.equal(done.omega, train_supervised(site.network, psi, site.labeled, SERVER, 0.2, generator(1))[0])
    assert outcome.clients is not None and torch.equal(outcome.clients, psi), (
        "what the clients made is scored by itself"
    )

    second = method.before_clients(replace(done, round=1), site, generator(2))
    assert torch.equal(second.sigma, done.omega), "no second training before the clients"


def test_fedprox_holds_a_client_near_its_start() -> None:
    omega, mu, lr = random_theta(1), 0.8, 0.1
    site = client_site(0)
    method = fedavg(prox=mu, client=LocalSGD(lr=lr, batch=4))  # three steps

    psi = method.train_client(payload_of(omega), site, generator(0)).reply["psi"]

    expected = omega.clone()
    for _ in range(3):  # ∇ = θ + μ(θ − ω)
        expected = expected - lr * (expected + mu * (expected - omega))
    torch.testing.assert_close(psi, expected, rtol=0, atol=1e-6)
    plain = fedavg(client=LocalSGD(lr=lr, batch=4)).train_client(payload_of(omega), site, generator(0)).reply["psi"]
    torch.testing.assert_close(plain, 0.9**3 * omega, rtol=0, atol=1e-6)
    assert (psi - omega).norm() < (plain - omega).norm()


def test_a_client_that_is_only_held_in_place_reports_no_steps() -> None:
    unsure = PseudoLabel(threshold=1.0)
    method, theta = fedavg(prox=0.1, objective=unsure), torch.zeros_like(random_theta(1))
    trained = method.train_client(payload_of(theta), client_site(0), generator(0))
    assert trained.metrics["steps"] == 0
    assert torch.equal(trained.reply["psi"], theta)


def test_fedprox_is_fedavg_with_a_proximal_term() -> None:
    fedprox = FEDPROX.build(server=SERVER, client=CLIENT, aggregator=by_images, objective=TowardsZero())
    assert fedprox == fedavg(prox=0.01)
    assert fedavg().prox == 0.0


def test_pseudo_labels_are_the_models_own_where_it_is_sure() -> None:
    site, omega = client_site(0), random_theta(1)
    confidence = linear_logits(omega, site.samples.data).softmax(1).max(1).values
    tau = float(confidence.sort().values[5:7].mean())
    method = fedavg(objective=PseudoLabel(threshold=tau, weight=1.5))

    trained = method.train_client(payload_of(omega), site, generator(3))

    rng = generator(3)
    order = torch.randperm(12, generator=rng)
    chosen = order[confidence[order] >= tau]
    variable = omega.clone().requires_grad_()
    labels = linear_logits(omega, site.samples.data[chosen]).argmax(1)
    log_p = linear_logits(variable, site.samples.take(chosen).weak(rng).data).log_softmax(1)
    loss = -1.5 * log_p[torch.arange(6), labels].mean()
    torch.testing.assert_close(trained.reply["psi"], omega - 0.1 * gradient_of(loss, variable), rtol=0, atol=1e-6)
    assert trained.votes is not None and sorted(trained.votes.tolist())[:7].count(-1) == 6
    assert trained.metrics == {"coverage": 0.5, "steps": 1.0}


def test_progress_and_rate_travel_with_the_model() -> None:
    method = fedavg(client=LocalSGD(lr=0.4, schedule="cosine", rounds=8))
    payload = method.broadcast(replace(method.start(random_theta(1)), round=4), 0)
    assert float(payload["progress"]) == 0.5 and float(payload["lr"]) == pytest.approx(0.2)
