"""Sums that no honest client of fedmoments can send, whatever its images are like: each rule follows from the method.

    survey    Σ y and Σ y yᵀ of n features no longer than LENGTH: Σ y yᵀ − (Σ y)(Σ y)ᵀ/n has no negative eigenvalue,
              and the squares of v + origin add up to at most n LENGTH²
    shares    every image is distributed over the classes at most once (a site withholds classes with few images):
              Σ_c n_c ≤ n, n_c ≥ 0, ‖Σ r_c x‖ ≤ n_c LENGTH
    header    of n images, 0 to n changed class; the more temperature the less sure a model, from n down to n/C
    order     r_c/r_j grows with z_c − z_j, so the images claimed for c score higher in it than those claimed for j:
              mean over r_c of (z_c − z_j) ≥ mean over r_j of (z_c − z_j), for each pair of classes

The scores are linear, z = v W + b, so both means follow from the sums. The order holds for any class mix π_k and any
number of steps (monotone likelihood ratio); sums sent for the wrong classes break it. Tolerances are those of sums
that were sent in eight bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.core.layout import Payload
from fedfew.methods.fedmoments.basis import Frame
from fedfew.methods.fedmoments.em import ClassScores, ClassSums, Shape, sent_scores
from fedfew.methods.fedmoments.survey import Tally, matrix_of
from fedfew.models.backbones.pretrained import LENGTH

SLACK = 0.02
"""Tolerance of the order rule, as a share of the largest possible score difference: for rounding, not class mix."""


@dataclass(frozen=True)
class Implausible:
    """The rule of the gate, for answers of this shape."""

    shape: Shape

    def __call__(self, reply: Tensor, payload: Payload, examples: int) -> str:
        """Why no images can have these sums; empty if some can."""
        sums, frame = reply.double(), Frame.sent(payload)
        asked = "weight" in payload
        own = sums[self.shape.length :] if asked else sums
        if not examples or (asked and len(sums) < self.shape.length):
            return ""
        why = ""
        if len(own) == Tally.length(self.shape.width):
            why = odd_survey(own, frame, examples, LENGTH)
        if asked and not why:
            why = odd_header(sums, self.shape, examples)
            for model, part in zip(sent_scores(payload), self.shape.read(sums[: self.shape.length]), strict=True):
                why = why or odd_classes(part, frame, model, examples, LENGTH)
        return why


def odd_survey(sums: Tensor, frame: Frame, examples: int, longest: float) -> str:
    """Why n features of at most this length cannot have these Σ y and Σ y yᵀ; empty if they can."""
    width = len(frame.scale)
    second, mean = matrix_of(sums, width), sums[:width] / examples
    total = float((second.diagonal() * frame.scale**2).sum() + examples * frame.origin.square().sum())
    total += 2 * float((frame.origin * frame.scale * sums[:width]).sum())
    if float(second.diagonal().min()) < 0 or total > 1.02 * examples * longest**2:
        return f"has squares that sum to {total:.4g}; 0 to {examples * longest**2:.4g} is possible"
    scatter = second - examples * torch.outer(mean, mean)
    steps = [float(part.abs().max()) / 127 if len(part) else 0.0 for part in (sums[: 2 * width], sums[2 * width :])]
    slack = width**0.5 * (2 * float(mean.norm()) * steps[0] + steps[1]) + 1e-3 * float(second.diagonal().sum()) + 1e-3
    jitter = slack * torch.eye(width, dtype=torch.float64)
    if int(torch.linalg.cholesky_ex(scatter + jitter).info):
        return "has second moments that no images have"
    return ""


def odd_header(sums: Tensor, shape: Shape, examples: int) -> str:
    """Why n images cannot have moved or be as sure as said; empty if they can."""
    slack = 1e-3 * examples + 1e-3
    if not -slack <= float(sums[1]) <= examples + slack:
        return f"says that {float(sums[1]):.4g} of {examples} images changed class"
    curves = torch.stack([part.confidence for part in shape.read(sums[: shape.length])])
    if bool((curves.diff(dim=1) > slack).any() or (curves > examples + slack).any()):
        return "has confidences that rise with the temperature or exceed 1"
    if bool((curves < examples / shape.classes - slack).any()):
        return "has confidences below chance"
    return ""


def odd_classes(sums: ClassSums, frame: Frame, model: ClassScores, examples: int, longest: float) -> str:
    """Why a client that was sent this model cannot have these sums; empty if it can."""
    counts, width = sums.counts, len(model.weight)
    slack = 1e-3 * examples + 1e-3
    if bool((counts < -slack).any()) or float(counts.sum()) > examples + slack:
        return f"distributes {float(counts.sum()):.4g} images over the classes but has {examples}"
    moments = sums.moments * frame.scale[:width]
    features = moments + counts[:, None] * frame.origin[:width]
    rounding = 0.01 * float(moments.abs().max()) * width**0.5
    if bool((features.norm(dim=1) > 1.01 * longest * counts.clamp_min(0) + longest * slack + rounding).any()):
        return "has class sums longer than its images can make them"
    claimed = (counts > max(slack, 1.0)).nonzero()[:, 0]
    w = model.weight[:, claimed]
    scores = moments[claimed] @ w / counts[claimed, None] + model.bias[claimed]
    ahead = scores.diagonal()[:, None] - scores
    widest = 2 * longest * torch.cdist(w.T, w.T)
    if bool((ahead + ahead.T < -SLACK * widest - 1e-6).any()):
        return "has class sums that score higher in another class than the images it claims for that class"
    return ""
