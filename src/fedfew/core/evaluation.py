"""Evaluation: accuracy and loss of a model on labeled images, the same bits wherever it runs."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch.nn.functional import cross_entropy

from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Count, Decay, Doc
from fedfew.core.types import Scores


def evaluate(network: Network, labeled: LabeledSet, batch: int = 500) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of the network as it is."""
    network.set_training(False)
    right, loss = 0, 0.0
    with torch.inference_mode():
        for samples, labels in zip(labeled.samples.split(batch), labeled.labels.split(batch), strict=True):
            logits, truth = network(samples), labels.to(network.device)
            right += int((logits.argmax(1) == truth).sum())
            loss += float(cross_entropy(logits, truth, reduction="sum"))
    return right / len(labeled), loss / len(labeled)


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated after a round, and after which rounds."""

    every: Annotated[Count, Doc("rounds between two evaluations; the model is always evaluated after the last")] = 1
    clients: Annotated[bool, Doc("also score the clients' model before the server's turn, as accuracy_clients")] = True
    ema: Annotated[
        Decay,
        Doc("decay of a moving average of the global model over the rounds, evaluated and saved in its place; 0: none"),
    ] = 0.0

    by_client: Annotated[
        bool, Doc("in a simulation, at the end: the model's accuracy on each client's images, and how even it is")
    ] = False
    stop: Annotated[
        Literal["never", "validation", "loss", "settled"],
        Doc(
            "end the run early: after `patience` rounds without a better accuracy or a lower loss on the validation"
            " images, or once the method has settled; never by test images"
        ),
    ] = "never"
    patience: Annotated[Count, Doc("rounds without an improvement after which stop ends the run")] = 20

    def due(self, round: int, rounds: int) -> bool:
        """Whether the model is evaluated after this round."""
        return round % self.every == 0 or round >= rounds

    def mean(self, before: Vector | None, omega: Vector) -> Vector | None:
        """The exponential moving average updated with ω; None where ω itself is evaluated."""
        if not self.ema:
            return None
        return omega if before is None else self.ema * before + (1 - self.ema) * omega


NOT_SCORED = Scores(float("nan"), float("nan"), None)


def score(
    network: Network, omega: Vector, test: LabeledSet, validation: LabeledSet, clients: Vector | None = None
) -> Scores:
    """Scores of ω for the round's record, and of the clients' model before the server's turn."""
    alone = None
    if clients is not None and len(test):
        network.load(clients)
        alone = evaluate(network, test)[0]
    network.load(omega)
    accuracy, loss = evaluate(network, test) if len(test) else (float("nan"), float("nan"))
    held_out, lost = evaluate(network, validation) if len(validation) else (None, None)
    return Scores(accuracy, loss, held_out, alone, lost)
