"""FedBN: normalisation layers stay with the client, the rest is averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
ICLR 2021.

    client k:  starts from σ with its own γ_k, β_k and running statistics in it, trains as under FedAvg, keeps those
    server:    averages the other entries; its own normalisation comes from its training on D_s, and serves evaluation

The same for any other method that sends models: ``norm.policy = "local"``. A client seen for the first time starts with
the server's normalisation. On a net without normalisation layers the config is refused.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedfew.core.types import Transform
from fedfew.methods.fedavg import FedAvg
from fedfew.transforms.norm_policy import LocalNorm


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedBN (Li et al. 2021): FedAvg whose clients keep their normalisation layers."""

    transforms: ClassVar[tuple[Transform, ...]] = (LocalNorm(),)
