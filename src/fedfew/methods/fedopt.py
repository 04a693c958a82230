"""FedAdam and FedYogi: the server takes an adaptive step along the clients' mean change.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive Federated
Optimization. ICLR 2021.

    Δ = Σ w_k ψ^k − ω_t,   m ← β_1 m + (1 − β_1) Δ
    v ← β_2 v + (1 − β_2) Δ²                     FedAdam
    v ← v − (1 − β_2) Δ² sign(v − Δ²)            FedYogi
    ψ = ω_t + η_s m / (√v + τ),   ω_{t+1} = ψ − η ∇ CE(y, f(x))  on the server's labels

v starts at τ². Batch-norm statistics are averaged as they are.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.settings import Decay, Doc, Positive
from fedfew.core.types import ServerSite, ServerState
from fedfew.methods.entry import Entry
from fedfew.methods.fedavg import STARTS_FROM_SERVER, FedAvg


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg with Adam at the server; with Yogi, the mean square forgets a large change more slowly."""

    server_lr: Annotated[Positive, Doc("η_s: the server's step size along the clients' mean change")] = 0.01
    beta1: Annotated[Decay, Doc("β_1: decay of the mean change from round to round")] = 0.9
    beta2: Annotated[Decay, Doc("β_2: decay of the mean square")] = 0.99
    tau: Annotated[Positive, Doc("τ: added to √v; the smaller, the more alike are the steps of all entries")] = 1e-3
    rule: Literal["adam", "yogi"] = "adam"

    def move(self, state: ServerState, psi: Vector, site: ServerSite) -> tuple[Vector, dict[str, Tensor]]:
        n = site.network.layout.trainable
        start = state.sigma[:n]
        change = psi[:n] - start
        square = change.square()
        first = state.extra.get("adaptive_first", torch.zeros_like(change))
        second = state.extra.get("adaptive_second", torch.full_like(change, self.tau**2))
        first = self.beta1 * first + (1 - self.beta1) * change
        if self.rule == "yogi":
            second = second - (1 - self.beta2) * square * (second - square).sign()
        else:
            second = self.beta2 * second + (1 - self.beta2) * square
        moved = start + self.server_lr * first / (second.sqrt() + self.tau)
        return torch.cat([moved, psi[n:]]), {"adaptive_first": first, "adaptive_second": second}


FEDADAM = Entry(FedAdam, unfit=STARTS_FROM_SERVER, sums="all")
FEDYOGI = Entry(FedAdam, {"rule": "yogi"}, unfit=STARTS_FROM_SERVER, sums="all")
