"""A Flower network without processes: real relay, real ClientApp and warm sites on threads, and one small Grid."""

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flwr.proto.node_pb2
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedfew.build.parts import Parts, sites_of
from fedfew.deploy.messages.frames import LIMIT, connect
from fedfew.deploy.messages.frames import Parts as RawParts
from fedfew.deploy.server.connection import ServerAppConnection
from fedfew.deploy.server.fleet import FlowerFleet, Membership, Timeouts
from fedfew.deploy.server.network import run_description
from fedfew.deploy.server.server_app import SERVERAPP, relay
from fedfew.deploy.site.build import trial_site
from fedfew.deploy.site.client_app import SITE, client_app
from fedfew.deploy.site.warm_site import WarmSite, serve
from fedfew.runtime.gate import reply_limit

PATIENT = Timeouts(timeout=30.0, wait=2.0)
Answer = Callable[[Mapping[str, Any], RawParts], tuple[dict[str, Any], RawParts]]


@dataclass
class Node:
    """What the Grid tells about a node."""

    node_id: int
    public_key: bytes
    name: str = ""


class LoopGrid(Grid):
    """Carries a message to the ClientApp at once, in this process; ``spoil`` may change or swallow replies."""

    def __init__(self, sockets: dict[int, Path]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.sockets, self.away = sockets, set[int]()
        self.replies: dict[str, Message] = {}
        self.spoil: Callable[[int, Message], Message | None] = lambda node, reply: reply
        self.held: dict[str, Message] = {}
        self.pushed: list[tuple[int, str, float]] = []
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.node = flwr.proto.node_pb2.Node(node_id=1)

    def set_run(self, run: Any) -> None:
        """Not used."""

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **options: Any) -> Message:
        """Deprecated by Flower."""
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not used: the fleet has its own deadline."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.sockets if node not in self.away]

    def get_nodes(self) -> Any:
        return [Node(node, f"key {node}".encode()) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"message {len(self.pushed)}"
            self.pushed.append((node, message.metadata.group_id, message.metadata.ttl))
            ids.append(message.metadata.message_id)
            if (reply := self.spoil(node, self._deliver(node, message))) is not None:
                self.replies[ids[-1]] = reply
        return ids

    def _deliver(self, node: int, message: Message) -> Message:
        os.environ[SITE] = str(self.sockets[node])
        context = Context(1, node, {}, RecordDict(), {})
        try:
            return client_app(message=message, context=context)
        except Exception as error:  # as Flower's process for the ClientApp does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not used: replies are pulled object by object, within a budget."""
        raise NotImplementedError

    @property
    def _runtime_client(self) -> "LoopGrid":
        return self

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802 - Flower's name
        """Announce the replies that are there, as the SuperLink does."""
        found = [self.replies.pop(id_) for id_ in request.message_ids if id_ in self.replies]
        for reply in found:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.objects |= {id_: one.deflate() for id_, one in get_all_nested_objects(reply).items()}
        protos = [message_to_proto(remove_content_from_message(reply)) for reply in found]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=map(get_object_tree, found))

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802 - Flower's name
        there = request.object_id in self.objects
        content = self.objects.get(request.object_id, b"")
        return PullObjectResponse(object_found=True, object_available=there, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802 - Flower's name
        self.confirmed.append(request.message_object_id)


@dataclass
class Loop:
    """The whole network: the fleet to test, the grid to spoil, the sites' folders and answers."""

    fleet: FlowerFleet
    grid: LoopGrid
    folder: Path
    sites: list[WarmSite]
    calls: list[int] = field(default_factory=list)
    ends: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        """End the ServerApp's connection, as its death would."""
        self.ends[-1].shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def loop(
    parts: Parts,
    sites: int = 2,
    timeouts: Timeouts = PATIENT,
    answers: Mapping[int, Callable[[WarmSite], Answer]] | None = None,
    keys: bool = True,
    limit: int = 0,
) -> Iterator[Loop]:
    """A fleet over a loop; ``answers`` replaces what a site does with a message."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        warm, sockets = [], {}
        for number in range(sites):
            state = folder / f"site{number}"
            state.mkdir()
            site = WarmSite(number, trial_site(number, sites), state)
            if answers and number in answers:
                site.answer = answers[number](site)  # type: ignore[method-assign, assignment]
            sockets[100 + number] = state / "socket"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(sockets[100 + number]))
            listener.listen(4)
            stack.callback(listener.close)
            threading.Thread(target=_serve, args=(site, listener), daemon=True).start()
            warm.append(site)
        grid = LoopGrid(sockets)
        found: list[Loop] = []

        def start_run() -> None:
            found[0].calls.append(1)
            os.environ[SERVERAPP] = str(connection.path)
            end = connect(SERVERAPP)
            found[0].ends.append(end)
            threading.Thread(target=relay, args=(grid, end), daemon=True).start()

        connection = ServerAppConnection(start_run, patience=10.0)
        names = {f"key {100 + number}": number for number in range(sites)} if keys else {}
        members = Membership([f"site{i}" for i in range(sites)], parts.config["clients"], names)
        score = sites_of(parts.config, parts.federation, parts.network).score
        fleet = FlowerFleet(
            connection,
            members,
            run_description(parts, "run"),
            timeouts,
            score,
            limit or reply_limit(parts.wire.reply_schema(parts.network.layout)),
        )
        found.append(Loop(fleet, grid, folder, warm))
        stack.callback(fleet.close)
        yield found[0]


def _serve(site: WarmSite, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        serve(site, listener, LIMIT)
