"""Whether an exported file agrees with the model: logits relative to their range, and the predicted classes.

The reference is the model with plain convolutions. Winograd's, used in training, differs from them by about 10⁻⁵ of
the largest value, and no exported file holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedfew.core.streams import stream

Predict = Callable[[Tensor], Tensor]
"""From uint8 images N×C×H×W to probabilities."""
TOLERANCE = 1e-4
"""Largest allowed difference of a logit, as a share of the range of the logits. Float32 in another order of sums gives
a few 10⁻⁶; a lost scale, a swapped channel or another interpolation 10⁻² and more."""
SAMPLE = 64
"""Images of each kind on which the file and the model are compared."""
SMALLEST = 1e-30
"""Smaller probabilities are not compared: float32 rounds them to 0."""


@dataclass(frozen=True)
class Agreement:
    """The largest distance between a file and the model over all images that were tried."""

    difference: float
    """Of a logit, as a share of the range of the logits (of 1 if they spread less)."""
    classes: float
    """Share of the images for which both predict the same class; a tie in the model itself counts as equal."""

    @property
    def holds(self) -> bool:
        return self.difference <= TOLERANCE and self.classes == 1.0

    def __str__(self) -> str:
        return f"logits differ by {self.difference:.1g} of their range, {self.classes:.1%} of the classes are equal"


def agreement(model: Predict, file: Predict, shape: list[int]) -> Agreement:
    """Compare on noise and on smooth patterns of every brightness, alone and in a batch."""
    images = _images(shape)
    largest, equal = 0.0, 1.0
    for batch in (images[:1], images):
        expected, actual = _logits(model(batch)), _logits(file(batch))
        spread = max(float((expected.amax(1) - expected.amin(1)).max()), 1.0)
        difference = (actual - expected).abs().max() / spread
        largest = max(largest, float(difference) if bool(difference.isfinite()) else float("inf"))
        torn = expected.amax(1) - expected.gather(1, actual.argmax(1, keepdim=True))[:, 0]
        equal = min(equal, float((torn <= TOLERANCE * spread).double().mean()))
    return Agreement(largest, equal)


def _logits(probabilities: Tensor) -> Tensor:
    """Logits up to a constant for each image: probabilities near 0 count as much as those near 1."""
    return probabilities.double().clamp_min(SMALLEST).log()


def _images(shape: list[int]) -> Tensor:
    rng = stream(0, "export")
    noise = torch.randint(0, 256, (SAMPLE, *shape), generator=rng)
    brightness = torch.linspace(0, 1, SAMPLE).view(-1, 1, 1, 1)
    patches = 255 * torch.rand((SAMPLE, shape[0], 4, 4), generator=rng)
    smooth = interpolate(patches, shape[1:], mode="bilinear", align_corners=False)
    return torch.cat([(noise * brightness).to(torch.uint8), smooth.to(torch.uint8)])
