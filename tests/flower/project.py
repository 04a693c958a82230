"""A small Flower project: its model, its data, and a Grid that hands messages to its ClientApp at once."""

from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from tests.deploy.in_process import LoopGrid
from torch import nn

from fedfew.core.samples import LabeledSet
from fedfew.data.dataset import Dataset
from fedfew.data.samples import Images
from fedfew.flower import train


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def images(count: int, seed: int) -> LabeledSet:
    """Three classes of bright rows that anything can tell apart."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=rng)
    pixels = torch.randint(0, 60, (count, 1, 8, 8), generator=rng, dtype=torch.uint8)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[0, 2 * label : 2 * label + 2] += 150
    return LabeledSet(Images(pixels, flips=False), labels)


def rows() -> Dataset:
    """What the server has: twelve labels and sixty test images."""
    return Dataset("rows", images(12, 1), images(60, 2), ("top", "middle", "bottom"))


class DirectGrid(LoopGrid):
    """A Grid whose nodes have no keys; their contexts last, as a SuperNode's do."""

    def __init__(self, nodes: dict[int, torch.Tensor], **options: Any) -> None:
        super().__init__(dict.fromkeys(nodes, Path()))
        self.nodes, self.options = nodes, options
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}

    def _deliver(self, node: int, message: Message) -> Message:
        return train(message, self.contexts[node], net(), self.nodes[node], **self.options)


def grid(clients: int = 3, **options: Any) -> DirectGrid:
    return DirectGrid({7_000 + k: images(24, 10 + k).samples.data for k in range(clients)}, **options)
