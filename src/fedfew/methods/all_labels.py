"""FedAvg with true labels: what the same clients would reach if every image had its true label.

ψ^k = ω_t − η ∇ CE(y, f(x)) on client k;   ω_{t+1} = Σ w_k ψ^k, trained on the server's labels

Not an upper bound, because averaging costs accuracy: that is ``pooled``. Gradients are clipped like the server's.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.settings import Doc, NonNegative
from fedfew.core.types import ClientSite, OracleSite, ServerState, Trained
from fedfew.methods.entry import Entry
from fedfew.methods.fedavg import STARTS_FROM_SERVER, Averaging
from fedfew.training.supervised import Supervised, train_supervised
from fedfew.training.updates import Order, Warmup, step_size


@dataclass(frozen=True)
class AllLabels(Averaging):
    """Clients train on their true labels. Possible only in simulation, to show what is left to gain."""

    lambda_s: Annotated[NonNegative, Doc("weight of the cross-entropy at server and clients")] = 1.0
    augment: Annotated[Literal["none", "weak", "strong"], Doc("augmentation of the clients' images")] = "weak"
    order: Order = "after"
    warmup: Warmup = 0

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return {"omega": state.sigma} | step_size(self.client, state)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        raise FedfewError("E113", "method.name", "all-labels needs the clients' labels, which only a simulation has")

    def train_with_labels(self, payload: Payload, site: OracleSite, rng: torch.Generator) -> Trained:
        how = Supervised(replace(self.client, clip=self.server.sgd.clip), self.augment)
        psi, steps = train_supervised(
            site.network, payload["omega"], site.labeled, how, float(payload["lr"]), rng,
            scale=self.lambda_s,
        )  # fmt: skip
        return Trained({"psi": psi}, {"steps": float(steps)})


ALL_LABELS = Entry(AllLabels, unfit=STARTS_FROM_SERVER)
