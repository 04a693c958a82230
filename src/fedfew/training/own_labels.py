"""A client's own labels, where the scenario gives it some: their cross-entropy is added to every batch's loss."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.types import ClientSite, LabeledClientSite
from fedfew.training.sgd import Supervised

LabelLoss = Callable[[], Tensor | None]
"""weight · CE(y, f(x)) on a fresh draw of the client's labels; None where it has none."""


def label_loss(site: ClientSite, how: Supervised, batch: int, weight: float, rng: torch.Generator) -> LabelLoss:
    """The loss on ``batch`` of the client's labeled images at a time, augmented as the server's labeled images are."""
    if not isinstance(site, LabeledClientSite) or not weight:
        return lambda: None
    labeled, network = site.labeled, site.network

    def loss() -> Tensor:
        chosen = torch.randperm(len(labeled), generator=rng)[:batch]
        samples = how.augmented(labeled.samples.take(chosen), rng)
        return weight * cross_entropy(network(samples), labeled.labels[chosen].to(network.device))

    return loss


def summed(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of two losses, either of which may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
