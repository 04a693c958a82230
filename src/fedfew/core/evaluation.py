"""Evaluation: accuracy and loss of a model on labeled images, the same bits wherever it runs."""

import torch
from torch.nn.functional import cross_entropy

from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.types import LabeledSet, Scores


def evaluate(network: Network, labeled: LabeledSet, batch: int = 500) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of the network as it is."""
    network.set_training(False)
    right, loss = 0, 0.0
    with torch.inference_mode():
        for images, labels in zip(labeled.images.split(batch), labeled.labels.split(batch), strict=True):
            logits, truth = network(images), labels.to(network.device)
            right += int((logits.argmax(1) == truth).sum())
            loss += float(cross_entropy(logits, truth, reduction="sum"))
    return right / len(labeled), loss / len(labeled)


def score(network: Network, omega: Vector, test: LabeledSet, validation: LabeledSet) -> Scores:
    """What a round's record says about ω."""
    network.load(omega)
    accuracy, loss = evaluate(network, test) if len(test) else (float("nan"), float("nan"))
    held_out = evaluate(network, validation)[0] if len(validation) else None
    return Scores(accuracy, loss, held_out)
