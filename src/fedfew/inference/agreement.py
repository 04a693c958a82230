"""Whether an exported file agrees with the model: logits relative to their range, and the predicted classes.

The reference is the model with plain convolutions. Winograd's, used in training, differs from them by about 10⁻⁵ of
the largest value, and no exported file holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Predict = Callable[..., Tensor]
"""From the inputs of a form (``inference/forms.py``) to probabilities."""
TOLERANCE = 1e-4
"""Largest allowed difference of a logit, as a share of the range of the logits. Float32 in another order of sums gives
a few 10⁻⁶; a lost scale, a swapped channel or another interpolation 10⁻² and more."""
SMALLEST = 1e-30
"""Smaller probabilities are not compared: float32 rounds them to 0."""


@dataclass(frozen=True)
class OutputAgreement:
    """The largest distance between a file and the model over all samples that were tried."""

    difference: float
    """Of a logit, as a share of the range of the logits (of 1 if they spread less)."""
    classes: float
    """Share of the samples for which both predict the same class; a tie in the model itself counts as equal."""

    @property
    def holds(self) -> bool:
        return self.difference <= TOLERANCE and self.classes == 1.0

    def __str__(self) -> str:
        return f"logits differ by {self.difference:.1g} of their range, {self.classes:.1%} of the classes are equal"


def agreement(model: Predict, file: Predict, inputs: tuple[Tensor, ...]) -> OutputAgreement:
    """Compare on these inputs, the first one alone and all in a batch."""
    largest, equal = 0.0, 1.0
    for batch in (tuple(part[:1] for part in inputs), inputs):
        expected, actual = _logits(model(*batch)), _logits(file(*batch))
        spread = max(float((expected.amax(1) - expected.amin(1)).max()), 1.0)
        difference = (actual - expected).abs().max() / spread
        largest = max(largest, float(difference) if bool(difference.isfinite()) else float("inf"))
        torn = expected.amax(1) - expected.gather(1, actual.argmax(1, keepdim=True))[:, 0]
        equal = min(equal, float((torn <= TOLERANCE * spread).double().mean()))
    return OutputAgreement(largest, equal)


def _logits(probabilities: Tensor) -> Tensor:
    """Logits up to a constant for each sample: probabilities near 0 count as much as those near 1."""
    return probabilities.double().clamp_min(SMALLEST).log()
