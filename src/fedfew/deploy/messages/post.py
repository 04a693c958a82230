"""Sends messages to the nodes of Flower's Grid and pulls replies within a budget.

Every object of a reply is counted, and inspected before Flower unpacks it. Flower's own ``Grid.pull_messages`` takes
whatever a site has sent, all at once: a gigabyte, or a chunk that an index repeats a million times. Here a reply over
its limit is given up while it is being fetched. That needs names which Flower does not publish, so they are all in this
file; with a Flower or a Grid that lacks them, replies are pulled by ``Grid.pull_messages`` and checked after they are
unpacked.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from flwr.app import Message, MessageType, RecordDict

from fedfew.core.errors import Refusal
from fedfew.deploy.messages.heads import ContentError, head_limit

try:
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
    from flwr.proto.recorddict_pb2 import ConfigRecord as ConfigRecordProto
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_head_values_from_object_content,
        iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        ObjectUnavailableError,
        inflate_object_from_contents,
        pull_objects,
    )
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
except ImportError:  # another version of Flower
    KNOWN = False
else:
    KNOWN = True

_OBJECTS, _OBJECT = 64, 1 << 14
"""Objects that any reply may have, and bytes of its limit that allow one more."""
_DESCRIPTION = 1 << 20
"""Bytes of JSON in which Flower may describe the arrays of a reply."""
_PAUSE, _UPLOAD = 1.0, 180.0
"""Seconds between two checks of a reply that is being uploaded, and until it is given up (as in Flower)."""
_UNAVAILABLE = 4
"""Flower's code for a reply that no longer exists."""


@dataclass(frozen=True)
class Pulled:
    """A reply: its content, or the error that Flower reports, or why it was not read."""

    to: str
    content: RecordDict | None = None
    error: int = 0
    refused: ContentError | None = None


class _NotYetError(Exception):
    """A reply is announced but not fully uploaded."""


@dataclass
class _Announced:
    """A reply that the SuperLink knows of."""

    to: str
    id: str
    tree: "ObjectTree"
    since: float = field(default_factory=monotonic)
    next_try: float = 0.0


class Post:
    """A Grid as fedfew uses it; ``limit``: most bytes of one client's reply.

    Replies are fetched one by one; one that is still being uploaded does not hold up the others.
    """

    def __init__(self, grid: Any, limit: int) -> None:
        self._grid, self.limit = grid, limit
        self._announced: list[_Announced] = []

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
        if not (KNOWN and hasattr(self._grid, "_runtime_client")):
            for message in self._grid.pull_messages(list(clients)) if clients else ():
                yield _pulled(message.metadata.reply_to_message_id, message)
            return
        client = self._grid._runtime_client
        new = sorted(set(clients) - {one.to for one in self._announced})
        if new:
            response = client.PullMessages(PullAppMessagesRequest(message_ids=new))
            for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                about = message.metadata
                self._announced.append(_Announced(about.reply_to_message_id, about.message_id, tree))
        for one in list(self._announced):
            if (
                one.to in clients
                and one.next_try <= monotonic()
                and (pulled := self._fetch(client, one, clients.get(one.to, 0)))
            ):
                self._announced.remove(one)
                yield pulled

    def _fetch(self, client: Any, one: _Announced, clients: int) -> Pulled | None:
        """A reply, or None while it is being uploaded."""
        limit, head = self.limit * clients, head_limit(clients)
        node, run = self._grid.node, self._grid.run.run_id
        try:
            contents = _contents(make_pull_object_fn_protobuf(client.PullObject, node, run), one, limit + head)
            check_contents(contents, limit, head)
            message = inflate_object_from_contents(one.id, contents)
            if not isinstance(message, Message):
                raise ContentError(Refusal.NAMES, "it is not a message")
            done = _pulled(one.to, message)
        except _NotYetError:
            one.next_try = monotonic() + _PAUSE
            if monotonic() < one.since + _UPLOAD:
                return None
            done = Pulled(one.to, error=_UNAVAILABLE)
        except ContentError as refused:
            done = Pulled(one.to, refused=refused)
        except ObjectPullError:
            done = Pulled(one.to, error=_UNAVAILABLE)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, DecodeError):
            done = Pulled(one.to, refused=ContentError(Refusal.NAMES, "it is not a Flower message"))
        client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=one.id))
        return done


def _pulled(to: str, message: Message) -> Pulled:
    return Pulled(to, error=int(message.error.code)) if message.has_error() else Pulled(to, message.content)


def _contents(pull: Callable[[str], bytes], one: _Announced, limit: int) -> dict[str, bytes]:
    """The objects of a reply; ContentError as soon as there are too many or they are too large in total."""
    ids = dict.fromkeys(node.object_id for node in iterate_object_tree(one.tree))
    if len(ids) > _OBJECTS + limit // _OBJECT:
        raise ContentError(Refusal.TOO_LARGE, f"it has {len(ids):,} objects")
    lock, total = threading.Lock(), 0

    def counted(id_: str) -> bytes:
        nonlocal total
        try:
            content = pull(id_)
        except ObjectUnavailableError:
            raise _NotYetError from None
        with lock:
            total += len(content)
            if total > limit + _DESCRIPTION:
                raise ContentError(Refusal.TOO_LARGE, f"it holds more than {limit:,} bytes, the limit")
        return content

    first = {one.id: counted(one.id)}  # a site uploads it last
    return first | pull_objects([id_ for id_ in ids if id_ != one.id], counted)


def check_contents(contents: Mapping[str, bytes], limit: int, head: int) -> None:
    """ContentError unless the unpacked objects have the bytes that were counted, and the head its few fields."""
    unfolded = described = 0
    for content in contents.values():
        kind, children, size = get_object_head_values_from_object_content(content)
        body = memoryview(content)[len(content) - size :] if 0 <= size <= len(content) else memoryview(b"")
        if kind == "ConfigRecord":
            if len(body) > head + (1 << 19) or len(ConfigRecordProto.FromString(bytes(body)).items) > 8:
                raise ContentError(Refusal.TOO_LARGE, f"its head has {len(body):,} bytes")
        elif kind == "Array":
            described += len(body)
            order = json.loads(bytes(body))["arraychunk_ids"] if described <= _DESCRIPTION else []
            unfolded += sum(len(contents[children[i]]) for i in order)
        elif kind in ("RecordDict", "ArrayRecord", "Message"):
            described += len(body)
        elif kind != "ArrayChunk":
            raise ContentError(Refusal.NAMES, "it holds records of another kind")
    if described > _DESCRIPTION:
        raise ContentError(Refusal.TOO_LARGE, f"its description has {described:,} bytes")
    if unfolded > limit + _DESCRIPTION:
        raise ContentError(Refusal.TOO_LARGE, f"it unpacks to {unfolded:,} bytes, the limit is {limit:,}")
