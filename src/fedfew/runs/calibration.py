"""How sure a model may be: the temperature that makes its probabilities honest on held-out labels, and their mix."""

import torch
from torch import Tensor

from fedfew.core.network import Network
from fedfew.core.types import LabeledSet

SURE, UNSURE = 0.5, 10.0
"""Bounds of T: on a few labels a model may be right every time, which is no proof that it is sure for good."""


def temperature(network: Network, held_out: LabeledSet) -> float:
    """T that minimises the cross-entropy of softmax(z / T) on labels the model has not seen; 1 if there are none.

    C. Guo, G. Pleiss, Y. Sun, K. Weinberger: On Calibration of Modern Neural Networks. ICML 2017.
    """
    if not len(held_out):
        return 1.0
    logarithms = network.probabilities(held_out.images).double().clamp_min(1e-30).log()
    return fit_temperature(logarithms, held_out.labels)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The cross-entropy is convex in β = 1/T, so its slope has one zero: found by halving."""

    def slope(beta: float) -> float:
        expected = ((beta * logits).softmax(1) * logits).sum(1)
        return float((expected - logits.gather(1, labels[:, None])[:, 0]).mean())

    low, high = 1 / UNSURE, 1 / SURE
    if slope(low) > 0:
        return UNSURE
    if slope(high) < 0:
        return SURE
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return round(2 / (low + high), 6)


def class_shares(labeled: LabeledSet, classes: int) -> list[float]:
    """The mix of classes that the server's labels show."""
    counts = torch.bincount(labeled.labels, minlength=classes).double()
    return [round(share, 6) for share in (counts / counts.sum()).tolist()]
