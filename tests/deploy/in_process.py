"""A Flower network without processes: real fleet, ClientApp and warm sites on threads, and one small Grid."""

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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

from fedfew.config.parts import Parts
from fedfew.config.tree import FleetSettings
from fedfew.deploy.messages.frames import Arrays
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.server.fleet import GridFleet
from fedfew.deploy.server.members import Membership
from fedfew.deploy.server.server_app import grid_fleet, identity_of
from fedfew.deploy.site.build import real_site, trial_site
from fedfew.deploy.site.client_app import SITE, client_app
from fedfew.deploy.site.files import PrivacyBudget
from fedfew.deploy.site.limits import SiteTerms
from fedfew.deploy.site.warm_site import WarmSite, listen, serve

PATIENT = FleetSettings(timeout=30.0, wait=2.0)
Answer = Callable[[Mapping[str, Any], Arrays], tuple[dict[str, Any], Arrays]]


@dataclass
class Node:
    """What the Grid tells about a node."""

    node_id: int
    public_key: bytes
    name: str = ""


class LoopGrid(Grid):
    """Carries a message to the ClientApp at once, here; ``spoil`` may change or swallow a round's replies."""

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

    def set_run(self, run: Any) -> None: ...
    def create_message(self, *args: Any, **options: Any) -> Any: ...
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any: ...

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

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
            reply = self._deliver(node, message)
            spoiled = self.spoil(node, reply) if message.metadata.group_id.isdigit() else reply
            if spoiled is not None:
                self.replies[ids[-1]] = spoiled
        return ids

    def _deliver(self, node: int, message: Message) -> Message:
        os.environ[SITE] = str(self.sockets[node])
        context = Context(1, node, {}, RecordDict(), {})
        try:
            return client_app(message=message, context=context)
        except Exception as error:  # as Flower's process for the ClientApp does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there, as Flower's public interface gives them."""
        return [self.replies.pop(id_) for id_ in message_ids if id_ in self.replies]


class CountingGrid(LoopGrid):
    """As Flower's HttpGrid, it can also be asked for replies object by object."""

    @property
    def _runtime_client(self) -> "CountingGrid":
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

    fleet: GridFleet
    grid: LoopGrid
    folder: Path
    sites: list[WarmSite]


@contextlib.contextmanager
def loop(
    parts: Parts,
    sites: int = 2,
    settings: FleetSettings = PATIENT,
    answers: Mapping[int, Callable[[WarmSite], Answer]] | None = None,
    keys: bool = True,
    grid: type[LoopGrid] = CountingGrid,
    images: Mapping[int, Path] | None = None,
) -> Iterator[Loop]:
    """A fleet over a loop; ``answers`` replaces what a site does with a message. With ``images`` sites are real."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        memory = folder / "network" / "memory"
        warm, sockets = [], {}
        secure = parts.config.privacy.sums == "secure"
        names = [f"site{number}" for number in range(sites)]
        plan = make_network(folder / "net", names) if secure else None
        for number in range(sites):
            state = folder / f"site{number}"
            state.mkdir()
            if secure:
                open_bundle(folder / "net" / "bundles" / f"site{number}.tar", state)
            site = WarmSite(number, trial_site(number, sites, SiteTerms(), state), state, memory=memory)
            if images:
                site.terms, site.budget = SiteTerms(), PrivacyBudget(state / "privacy.json")
                site.build = real_site(number, images[number], site.terms, state)
            if answers and number in answers:
                site.answer = answers[number](site)  # type: ignore[method-assign, assignment]
            sockets[100 + number] = state / "socket"
            listener = listen(str(sockets[100 + number]))
            stack.callback(listener.close)
            threading.Thread(target=_serve, args=(site, listener), daemon=True).start()
            warm.append(site)
        over = grid(sockets)
        known = {f"key {100 + number}": number for number in range(sites)} if keys else {}
        members = Membership(names, parts.config.clients, known, identity_of(parts.config, plan) if plan else None)
        fleet = grid_fleet(over, parts, members, folder)
        fleet._settings = settings
        yield Loop(fleet, over, folder, warm)


def _serve(site: WarmSite, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        serve(site, listener)
