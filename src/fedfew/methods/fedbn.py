"""FedBN: normalisation layers stay with the client, the rest is averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
ICLR 2021.

    client k:  starts from σ with its own γ_k, β_k and running statistics in it, trains as in FedAvg, keeps those
    server:    averages the other entries; its own normalisation comes from training on D_s, and is used in evaluation

For any other method that sends models, set ``norm.policy = "local"``. A client seen for the first time starts with
the server's normalisation. A model without normalisation layers is refused.
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
