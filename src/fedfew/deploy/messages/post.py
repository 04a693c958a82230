"""Sends messages to the nodes of Flower's Grid and fetches replies, with their limits of size."""

from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedfew.deploy.messages.heads import head_limit
from fedfew.deploy.messages.pull import Pulled, ReplyPuller


class Post:
    """A Grid as fedfew uses it; ``limit``: most bytes of one client's reply."""

    def __init__(self, grid: Grid, limit: int) -> None:
        self._grid, self.limit, self._puller = grid, limit, ReplyPuller(grid)

    def nodes(self) -> dict[int, str]:
        """The nodes that are online, and their public keys."""
        return {int(node.node_id): bytes(node.public_key).decode(errors="replace") for node in self._grid.get_nodes()}

    def push(self, contents: Sequence[RecordDict], nodes: Sequence[int], ttl: float, group: str) -> list[str | None]:
        """Send a message to each node, all at once; the messages' ids, None where Flower did not accept one.

        All are of Flower's type "train": a project's ClientApp need not have a function for any other.
        """
        messages = [
            Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=group)
            for content, node in zip(contents, nodes, strict=True)
        ]
        ids: list[str | None] = [id_ or None for id_ in self._grid.push_messages(messages)] if messages else []
        return ids if len(ids) == len(messages) else [None] * len(messages)

    def pull(self, clients: Mapping[str, int]) -> Iterator[Pulled]:
        """Replies that have arrived; the limit of each depends on how many clients its message asked."""
        return self._puller.pull({id_: (self.limit * count, head_limit(count)) for id_, count in clients.items()})
