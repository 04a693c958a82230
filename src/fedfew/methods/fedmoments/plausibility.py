"""Sums that no honest client of fedmoments can send, whatever its images are like: each rule follows from the method.

    survey    Σ x and Σ x xᵀ of n features no longer than LENGTH: squares add up to at most n LENGTH², ‖Σ x‖² ≤ n Σ ‖x‖²
    shares    every image is distributed over the classes once: Σ_c n_c = n, n_c ≥ 0, ‖Σ r_c x‖ ≤ n_c LENGTH
    order     r_c/r_j grows with z_c − z_j, so the images claimed for c score higher in it than those claimed for j:
              mean over r_c of (z_c − z_j) ≥ mean over r_j of (z_c − z_j), for each pair of classes

The scores are linear, z = x W + b, so both means follow from the sums. The order holds for any class mix π_k and any
number of steps (monotone likelihood ratio); sums sent for the wrong classes break it.
"""

import torch
from torch import Tensor

from fedfew.core.layout import Payload
from fedfew.methods.fedmoments.em import ClassSums
from fedfew.models.backbones.pretrained import LENGTH

SLACK = 0.02
"""Tolerance of the order rule, as a share of the largest possible score difference: for rounding, not class mix."""


def implausible(reply: Tensor, payload: Payload, examples: int) -> str:
    """Why no images can have these sums; empty if some can."""
    sums = reply.double()
    if not examples or not len(sums):
        return ""
    if "survey" in payload:
        return odd_survey(sums, examples, LENGTH)
    width, classes = payload["weight"].shape
    if len(sums) != ClassSums.length(classes, width):
        return ""  # not an answer to this request: left out later
    moments = sums[classes : classes * (width + 1)].view(classes, width)
    weight, bias = payload["weight"].double(), payload["bias"].double()
    return odd_classes(sums[:classes], moments, weight, bias, examples, LENGTH)


def odd_survey(sums: Tensor, examples: int, longest: float) -> str:
    """Why n features of at most this length cannot have these Σ x and Σ x xᵀ; empty if they can."""
    width = round(((9 + 8 * len(sums)) ** 0.5 - 3) / 2)
    if width + width * (width + 1) // 2 != len(sums):
        return ""  # not an answer to this request: left out later
    rows, columns = torch.triu_indices(width, width)
    squares = sums[width:][rows == columns]
    total, slack = float(squares.sum()), 0.01 * examples * longest**2
    if float(squares.min()) < -slack or total > examples * longest**2 + slack:
        return f"has squares that sum to {total:.4g}; 0 to {examples * longest**2:.4g} is possible"
    if float(sums[:width].square().sum()) > examples * (total + slack):
        return "has a sum of features longer than their squares allow"
    return ""


def odd_classes(counts: Tensor, moments: Tensor, weight: Tensor, bias: Tensor, examples: int, longest: float) -> str:
    """Why a client that was sent these scores cannot have these Σ r (C) and Σ r xᵀ (C×D); empty if it can."""
    slack = 1e-3 * examples + 1e-3
    if bool((counts < -slack).any()) or abs(float(counts.sum()) - examples) > slack:
        return f"distributes {float(counts.sum()):.4g} images over the classes but has {examples}"
    if bool((moments.norm(dim=1) > 1.01 * longest * counts.clamp_min(0) + longest * slack).any()):
        return "has class sums longer than its images can make them"
    claimed = (counts > slack).nonzero()[:, 0]
    n, w = counts[claimed, None], weight[:, claimed]
    scores = moments[claimed] @ w / n + bias[claimed]
    ahead = scores.diagonal()[:, None] - scores
    widest = 2 * longest * torch.cdist(w.T, w.T)
    if bool((ahead + ahead.T < -SLACK * widest - 1e-6).any()):
        return "has class sums that score higher in another class than the images it claims for that class"
    return ""
