"""Differential privacy at the client: its change is clipped, and Gaussian noise added, before it is sent.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018,
with the noise added by each client itself, so that the server need not be trusted with the raw update.

    sent = ω + (ψ_k − ω) · min(1, C / ‖ψ_k − ω‖) + N(0, (z C)² I)

The change is brought to the grid of the noise, which is drawn from a cipher under a new key for every answer
(``discrete_gaussian.py``): it can be neither predicted nor repeated, so equal seeds give equal bits without noise only.

Two data sets of a client move ``sent`` by at most 2C before the noise, whatever they are: one round is a Gaussian
mechanism of multiplier z/2 for the whole data of the client. Nothing else is sent: no counts, no metrics.
"""

from dataclasses import dataclass, replace
from math import isfinite

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
        near = {name: schema[name].near for name in sorted(schema)}  # sums are not near any sent tensor
        sent = {name: payload[near[name]] if near[name] else torch.zeros_like(trained.reply[name]) for name in near}
        changes = {name: trained.reply[name] - sent[name] for name in sent}
        norm = float(torch.stack([change.double().square().sum() for change in changes.values()]).sum().sqrt())
        if not isfinite(norm):  # it cannot be clipped, so nothing is sent
            raise ArithmeticError("the change is not finite, so it cannot be clipped")
        scale = min(1.0, self.clip / norm) if norm else 1.0
        clipped = {name: scale * change for name, change in changes.items()}
        if self.noisy:
            source = Keystream()
            clipped = {name: self._blurred(change, source) for name, change in clipped.items()}
        # the noise is in the change already: added to large weights, rounding would come first and reveal it
        return Trained({name: sent[name] + clipped[name] for name in clipped}, examples=min(len(site), 1))

    def _blurred(self, change: Tensor, source: Keystream) -> Tensor:
        """The change in whole steps of the noise's grid, plus noise in whole steps: sums without any rounding."""
        step = self.clip * max(self.noise / S, FINEST)
        steps = (change.double() * (SHORTER / step)).trunc().long()  # towards zero: never longer than the clip
        noise = torch.from_numpy(discrete_gaussian(change.numel(), source)).view_as(steps)
        return ((steps + noise).double() * step).to(change.dtype)
