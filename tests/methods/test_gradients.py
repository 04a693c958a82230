"""Every loss term moves the parameters it is meant to move, all of them, and no others; on a real convolutional net."""

from typing import Any

import pytest
import torch
from tests.methods.tiny import CLASSES, MEAN, PIXELS, generator, random_images, random_theta
from torch import Tensor, nn

from fedfew.core.layout import Payload
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite
from fedfew.data.samples import Images
from fedfew.methods.fedmatch import FedMatch
from fedfew.methods.fedmix import FedMix
from fedfew.models.build import build_model
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised

PLAIN = Supervised(LocalSGD(lr=0.1))
LR = torch.tensor(0.1, dtype=torch.float64)


def conv_network(norm: str = "group") -> Network:
    module = build_model("cnn", 1, 12, CLASSES, {"width": 4, "norm": norm}, generator(0))
    network = Network.of(module)
    with torch.no_grad():  # norms at 1 and 0 and a small last layer hide some gradients, so a little noise on all
        network.vector[: network.layout.trainable] += 0.05 * torch.randn(
            network.layout.trainable, generator=generator(1)
        )
    return network


def images(count: int = 8) -> Tensor:
    return torch.randint(0, 256, (count, 1, 12, 12), dtype=torch.uint8, generator=generator(2))


def labeled(count: int = 8) -> LabeledSet:
    return LabeledSet(Images(images(count)), torch.arange(count) % CLASSES)


def site(network: Network) -> ClientSite:
    return ClientSite(0, network, Images(images()), CLASSES)


def assert_all_moved(network: Network, before: Tensor, after: Tensor) -> None:
    """Every tensor of parameters has changed somewhere."""
    old, new = network.layout.views(before), network.layout.views(after)
    still = [name for name, _ in network.module.named_parameters() if torch.equal(old[name], new[name])]
    assert not still, f"no gradient reached {', '.join(still)}"


OFF = {"lambda_ce": 0.0, "lambda_consistency": 0.0, "lambda_anchor": 0.0, "threshold": 0.0}
FEDMIX_TERMS: dict[str, dict[str, Any]] = {
    "pseudo-label cross-entropy": {"lambda_ce": 1.0},
    "consistency": {"lambda_consistency": 10.0},
    "anchor": {"lambda_anchor": 0.1},
}


@pytest.mark.parametrize("term", FEDMIX_TERMS)
def test_each_term_of_fedmix_moves_every_parameter(term: str) -> None:
    network = conv_network()
    omega = network.snapshot()
    method = FedMix(PLAIN, LocalSGD(lr=0.1), MEAN, **(OFF | FEDMIX_TERMS[term]))
    payload: Payload = {"omega": omega, "sigma": omega + 0.1, "lr": LR}
    assert_all_moved(network, omega, method.train_client(payload, site(network), generator(3)).reply["psi"])


FEDMATCH_OFF = {"lambda_i": 0.0, "lambda_a": 0.0, "lambda_l1": 0.0, "lambda_l2": 0.0, "threshold": 0.0, "delta": 0.0}


@pytest.mark.parametrize("term", ["lambda_i", "lambda_a", "lambda_l1", "lambda_l2"])
def test_each_term_of_fedmatch_moves_psi_and_leaves_sigma_and_helpers(term: str) -> None:
    network = conv_network()
    sigma = network.snapshot()
    psi, helper = 0.2 * sigma, 0.5 * sigma.flip(0)
    held = [t.clone() for t in (sigma, psi, helper)]
    method = FedMatch(PLAIN, LocalSGD(lr=0.1), MEAN, **(FEDMATCH_OFF | {term: 0.5}))  # type: ignore[arg-type]
    payload: Payload = {"sigma": sigma, "psi": psi, "helper0": helper, "lr": LR}

    reply = method.train_client(payload, site(network), generator(3)).reply

    change = torch.zeros_like(psi)
    change[reply["index"].long()] = reply["change"]
    assert_all_moved(network, psi, psi + change)
    assert all(torch.equal(a, b) for a, b in zip((sigma, psi, helper), held, strict=True))


class Counting(nn.Module):
    """A linear model that counts the images it sees: 1 each without autograd, 3 each with it (backward is twice)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES))
        self.cost = 0

    def forward(self, images: Tensor) -> Tensor:
        self.cost += len(images) * (3 if torch.is_grad_enabled() else 1)
        logits: Tensor = self.inner(images)
        return logits


@pytest.mark.parametrize("threshold", [0.0, 0.42, 0.48, 1.0])
def test_an_epoch_costs_at_most_nine_and_three_times_the_coverage(threshold: float) -> None:
    counting = Counting()
    site = ClientSite(0, Network.of(counting), Images(random_images(30, 1)), CLASSES)
    method = FedMix(Supervised(), LocalSGD(batch=8, lr=0.01), MEAN, threshold=threshold)
    payload = {"omega": random_theta(1), "sigma": random_theta(2), "lr": torch.tensor(0.01)}

    trained = method.train_client(payload, site, generator(0))

    coverage = trained.metrics["coverage"]
    assert counting.cost <= round(30 * (9 + 3 * coverage))
    assert counting.cost >= 30 * (6 + 6 * coverage), "two views with a gradient; three without for what may be kept"
    assert (counting.cost < 30 * 9) == (threshold == 1.0), "no image can reach 1: nobody asks views 3 to 5"
    assert (coverage == 0) == (threshold == 1.0) and (coverage == 1) == (threshold == 0.0)
