"""Differential privacy at the client: its change is clipped and blurred with Gaussian noise before it leaves.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018,
with the noise added by each client itself, so that the server need not be trusted with the clear update.

    sent = ω + (ψ_k − ω) · min(1, C / ‖ψ_k − ω‖) + N(0, (z C)² I)

Two data sets of a client move ``sent`` by at most 2C before the noise, whatever they are: one round is a Gaussian
mechanism of multiplier z/2 for the whole data of the client. Nothing else leaves: no counts, no metrics.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Lt

from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import ClientSite, Payload, Schema, Trained, Transform


@dataclass(frozen=True)
class Privacy:
    """What is done to an update before it leaves its client; off by default."""

    clip: Annotated[NonNegative, Doc("C: a client's change is shortened to this norm; 0: no clipping, no noise")] = 0.0
    noise: Annotated[NonNegative, Doc("z: noise of deviation z·C on every entry of the change")] = 0.0
    delta: Annotated[float, Gt(0), Lt(1), Doc("δ for which the report gives ε")] = 1e-5

    def transform(self) -> Transform | None:
        """What is done to every reply; None if privacy is off."""
        return Private(self.clip, self.noise) if self.clip else None


@dataclass(frozen=True)
class Private(Transform):
    """The clients' vectors leave clipped and with noise; counts and metrics do not leave."""

    clip: float
    noise: float

    def outgoing(
        self, trained: Trained, payload: Payload, schema: Schema, site: ClientSite, rng: torch.Generator
    ) -> Trained:
        """Clips all vectors of the reply together, then adds the noise."""
        sent = {name: payload[schema[name].near] for name in sorted(schema)}
        changes = {name: trained.reply[name] - sent[name] for name in sent}
        norm = float(torch.stack([change.double().square().sum() for change in changes.values()]).sum().sqrt())
        scale = min(1.0, self.clip / norm) if norm else 1.0
        deviation = self.noise * self.clip
        reply = {
            name: sent[name] + scale * change + deviation * torch.randn(change.shape, generator=rng)
            for name, change in changes.items()
        }
        return Trained(reply, examples=min(len(site), 1))


def unprotected(schema: Schema) -> list[str]:
    """Which tensors of a reply are no vectors near one that was sent, so that clipping and noise have no meaning."""
    return [name for name, expected in schema.items() if not expected.near]
