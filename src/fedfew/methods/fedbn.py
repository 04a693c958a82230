"""FedBN: normalisation layers stay with the client, the rest is averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
ICLR 2021.

    client k:  starts from σ with its own γ_k, β_k and running statistics in it, trains as under FedAvg, keeps those
    server:    averages the other entries; its own normalisation comes from its training on D_s, and serves evaluation

The same for any other method that sends models: ``norm.policy = "local"``. A client seen for the first time starts with
the server's normalisation. On a net without normalisation layers the config is refused.
"""

from typing import Annotated, Literal

from fedfew.core.settings import Doc, Natural, NonNegative
from fedfew.core.types import Aggregator
from fedfew.methods.fedavg import FedAvg
from fedfew.objectives.objective import Objective
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.sgd import LocalSGD, Supervised
from fedfew.transforms.norm_policy import LocalNorm


def fedbn(
    server: Supervised,
    client: LocalSGD,
    aggregator: Aggregator,
    objective: Objective,
    prox: Annotated[NonNegative, Doc("μ of the proximal term (μ/2)‖ψ − ω‖²; 0: none")] = 0.0,
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0,
    order: Annotated[Literal["before", "after"], Doc("as for fedavg")] = "before",
    server_momentum: Annotated[NonNegative, Doc("as for fedavg")] = 0.0,
    warmup: Annotated[Natural, Doc("as for fedavg")] = 0,
    vote: Voting = PLAIN_VOTE,
) -> LocalNorm:
    """FedBN (Li et al. 2021): FedAvg whose clients keep their normalisation layers."""
    return LocalNorm(
        FedAvg(server, client, aggregator, objective, prox, lambda_s, order, server_momentum, warmup, vote)
    )  # fmt: skip
