"""Differential privacy at the client: its change is clipped, and Gaussian noise added, before it is sent.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018,
with the noise added by each client itself, so that the server need not be trusted with the raw update.

    sent = ω + (ψ_k − ω) · min(1, C / ‖ψ_k − ω‖) + N(0, (z C)² I)

The change is brought to the grid of the noise, which is drawn from a cipher under a new key for every answer
(``discrete_gaussian.py``): it can be neither predicted nor repeated, so equal seeds give equal bits without noise only.

Two data sets of a client move ``sent`` by at most 2C before the noise, whatever they are: one round is a Gaussian
mechanism of multiplier z/2 for the whole data of the client. Nothing else is sent: no counts, no metrics.

For a single image (``per_image``), a method sends sums to which one image adds a vector no longer than Δ, all else
equal (``Expected.per_example``):   sent = Σ_i g(x_i) + N(0, (z Δ)² I).   Two data sets, one of which has one image
more, move it by at most Δ: multiplier z. Nothing is clipped: then every image's part would depend on all others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite, sqrt

import torch
from torch import Tensor

from fedfew.core.layout import Layout, Payload, Schema
from fedfew.core.types import ClientSite, Trained, Transform
from fedfew.transforms.discrete_gaussian import Keystream, S, discrete_gaussian

FINEST = 2.0**-50
"""Smallest step of the grid as a share of the clip: with less noise than 2⁻²⁶, which protects nothing, whole numbers
would become too large to be exact. There is more noise than asked for then."""
SHORTER = 1 - 1e-6
"""The clipped change is a little shorter than the clip, so that errors of float32 cannot make it longer."""


@dataclass(frozen=True)
class Private(Transform):
    """Clients send their vectors clipped and with noise; counts and metrics are not sent."""

    clip: float
    noise: float
    per_image: bool = False

    @property
    def noisy(self) -> bool:
        return self.noise > 0

    def travels(self, schema: Schema, layout: Layout) -> Schema:
        """Noisy sums are bounded by the clip, not by the number of images, which is not sent."""
        return {name: replace(expected, per_example=0.0, rule=None) for name, expected in schema.items()}

    def outgoing(
        self, trained: Trained, payload: Payload, schema: Schema, site: ClientSite, rng: torch.Generator
    ) -> Trained:
        """Clips all vectors of the reply together, then adds the noise."""
        if self.per_image:
            return self._hidden(trained, schema)
        near = {name: schema[name].near for name in sorted(schema)}  # sums are not near any sent tensor
        sent = {name: payload[near[name]] if near[name] else torch.zeros_like(trained.reply[name]) for name in near}
        changes = {name: trained.reply[name] - sent[name] for name in sent}
        scale = shortening(changes.values(), self.clip)
        clipped = {name: scale * change for name, change in changes.items()}
        if self.noisy:
            deviation = self.clip * max(self.noise, FINEST * S)
            clipped = {
                name: blurred(change.double() * SHORTER, deviation).to(change.dtype) for name, change in clipped.items()
            }
        # the noise is in the change already: added to large weights, rounding would come first and reveal it
        return Trained({name: sent[name] + clipped[name] for name in clipped}, examples=min(len(site), 1))

    def _hidden(self, trained: Trained, schema: Schema) -> Trained:
        """Sums with noise for one image of the site; even whether it has any is not told."""
        most = sqrt(sum(expected.per_example**2 for expected in schema.values()))
        if not all(bool(trained.reply[name].isfinite().all()) for name in schema):  # whole steps always are
            raise ArithmeticError("the sums are not finite, so noise does not hide an image in them")
        sent = {name: blurred(trained.reply[name].double(), self.noise * most) for name in sorted(schema)}
        return Trained({name: tensor.to(schema[name].dtype) for name, tensor in sent.items()}, examples=1)


def shortening(changes: Iterable[Tensor], clip: float) -> float:
    """The factor that makes vectors together no longer than the clip; what is not finite is not sent."""
    norm = float(torch.stack([change.double().square().sum() for change in changes]).sum().sqrt())
    if not isfinite(norm):
        raise ArithmeticError("the change is not finite, so it cannot be clipped")
    return min(1.0, clip / norm) if norm else 1.0


def blurred(values: Tensor, deviation: float) -> Tensor:
    """The values in whole steps of the noise's grid, plus noise in whole steps: sums without any rounding.

    Values are cut towards zero, never longer than before. Two vectors of d entries can thus become √d steps of
    deviation/2²⁴ further apart: for 10⁶ entries 0.006 % of the deviation.
    """
    step = deviation / S
    steps = (values.double() / step).trunc().long()
    noise = torch.from_numpy(discrete_gaussian(values.numel(), Keystream())).view_as(steps)
    return ((steps + noise).double() * step).to(values.dtype)
