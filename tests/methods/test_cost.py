"""What FedMix costs a client: 6 to 9 forward passes' worth per image with A = 5 views, and 3·coverage."""

import pytest
import torch
from tests.methods.tiny import CLASSES, MEAN, PIXELS, generator, random_images, random_theta
from torch import Tensor, nn

from fedfew.core.network import Network
from fedfew.core.types import ClientSite
from fedfew.data.samples import Images
from fedfew.methods.fedmix import FedMix
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised


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
