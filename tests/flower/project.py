"""A small Flower project: its model, its data, and a Grid that hands messages to its ClientApp at once."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
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


class DirectGrid(Grid):
    """Flower's public interface and no more; contexts last, as a SuperNode's do."""

    def __init__(self, nodes: dict[int, torch.Tensor], **options: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes, self.options = nodes, options
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}
        self.spoil: Callable[[int, Message], Message | None] = lambda node, reply: reply
        self.asked: list[int] = []
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"message {len(self.asked)}"
            ids.append(message.metadata.message_id)
            self.asked.append(node)
            reply = train(message, self.contexts[node], net(), self.nodes[node], **self.options)
            spoiled = self.spoil(node, reply) if message.metadata.group_id.isdigit() else reply
            if spoiled is not None:
                self.replies[ids[-1]] = spoiled
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(id_) for id_ in message_ids if id_ in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **options: Any) -> Any: ...


def grid(clients: int = 3, **options: Any) -> DirectGrid:
    return DirectGrid({7_000 + k: images(24, 10 + k).samples.data for k in range(clients)}, **options)
