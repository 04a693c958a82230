"""A federation small enough to follow by hand: a linear model on 8×8 images, and sites that hold a few of them."""

from typing import Any

import torch
from torch import Tensor, nn

from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import Aggregate, Aggregator, ClientSite, Contribution, ServerSite
from fedfew.data.samples import Images

CLASSES = 3
SIDE = 8
PIXELS = SIDE * SIDE


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear_network(classes: int = CLASSES) -> Network:
    """Logits W·x + b with x the image divided by 255; the vector is W row by row, then b."""
    return Network.of(nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, classes)))


def linear_logits(theta: Tensor, images: Tensor, classes: int = CLASSES) -> Tensor:
    """The same written out, from a vector that autograd may follow."""
    weight, bias = theta[: classes * PIXELS].view(classes, PIXELS), theta[classes * PIXELS :]
    return images.flatten(1).float() / 255 @ weight.T + bias


def random_theta(seed: int, scale: float = 0.3, classes: int = CLASSES) -> Vector:
    return scale * torch.randn(classes * (PIXELS + 1), generator=generator(seed))


def theta(network: Network, scale: float = 0.2, seed: int = 3) -> Vector:
    """Random weights for any network."""
    return scale * torch.randn(network.layout.size, generator=generator(seed))


def random_images(count: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (count, 1, SIDE, SIDE), dtype=torch.uint8, generator=generator(seed))


def random_labeled(count: int, seed: int) -> LabeledSet:
    return LabeledSet(
        Images(random_images(count, seed)), torch.randint(0, CLASSES, (count,), generator=generator(seed + 1))
    )


def server_site(count: int = 10, seed: int = 50, network: Network | None = None) -> ServerSite:
    return ServerSite(network or linear_network(), random_labeled(count, seed), CLASSES)


def client_site(client: int, count: int = 12, network: Network | None = None) -> ClientSite:
    return ClientSite(client, network or linear_network(), Images(random_images(count, 100 + client)), CLASSES)


def gradient_of(loss: Tensor, theta: Tensor) -> Tensor:
    """∇ of a loss by plain autograd."""
    return torch.autograd.grad(loss, theta)[0]


def contribution(
    client: int, vector: Any, examples: int = 1, participation: int = 1, steps: float = 1.0
) -> Contribution:
    return Contribution(client, torch.as_tensor(vector, dtype=torch.float32), examples, participation, steps)


def mean_of(contributions: Any, omega: Vector, sigma: Vector) -> Aggregate:
    """The plain mean, so that what is tested around it has one part less."""
    vectors = torch.stack([part.vector for part in contributions])
    return Aggregate(vectors.mean(0), {part.client: 1 / len(contributions) for part in contributions})


MEAN: Aggregator = mean_of
