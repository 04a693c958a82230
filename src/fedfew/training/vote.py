"""Pseudo-labels: the paper's argmax vote over A views, and the count of what was kept."""

import numpy as np
import torch
from torch import Tensor

from fedfew.training.label_shift import Adjust, unadjusted


def vote(
    probabilities: Tensor, threshold: float, mask_on: str = "mean", adjust: Adjust = unadjusted
) -> tuple[Tensor, Tensor]:
    """Labels and the mask of confident ones from softmax outputs A×B×C (Eq. 8; R7 in paper/README.md).

    The label is the argmax of the mean over the A views; it is kept where that mean is at least ``threshold``
    (``mask_on="first"``: where the first view alone is at least ``threshold`` sure of its own class). ``adjust``
    adapts the probabilities to the client's own class mix.
    """
    mean = adjust(probabilities.mean(0))
    confidence, labels = mean.max(1)
    if mask_on == "first":
        confidence = adjust(probabilities[0]).max(1).values
    return labels, confidence >= threshold


def can_reach_threshold(first: Tensor, views: int, threshold: float, mask_on: str = "mean") -> Tensor:
    """The mask of images whose label may still be kept, given the softmax outputs of their first views.

    No view can give a class more than 1, so an image whose mean stays below the threshold even then needs no further
    view: its label is dropped whatever they say. Means that ``adjust`` changes have no such bound.
    """
    if mask_on == "first":
        return first[0].max(1).values >= threshold
    most = first.sum(0).max(1).values + (views - len(first))
    return most >= views * threshold - ROUNDING


ROUNDING = 1e-4
"""More than the rounding error of float32 in a mean of a few dozen probabilities."""


class Ballot:
    """Collects the votes of one client's images over its training; the last vote on an image counts."""

    def __init__(self, images: int) -> None:
        self.votes = torch.full((images,), -1, dtype=torch.int64)

    def record(self, indices: Tensor, labels: Tensor, keep: Tensor) -> None:
        """Note the labels of a batch, −1 where they were not confident."""
        self.votes[indices] = torch.where(keep, labels, -1).cpu()

    @property
    def coverage(self) -> float:
        """Share of the images with a confident label."""
        return float(np.float32(np.count_nonzero(self.votes.numpy() >= 0)) / np.float32(len(self.votes) or 1))
