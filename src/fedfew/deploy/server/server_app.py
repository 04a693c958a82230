"""The ServerApp: carries messages between the process that runs the rounds and Flower's Grid, and decides nothing.

The round loop lives in the process the user started: if Flower's processes die, it restarts them and continues.
"""

import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedfew.deploy.messages.frames import FrameError, Parts, connect, receive, send
from fedfew.deploy.messages.heads import ContentError
from fedfew.deploy.messages.pull import ReplyPuller
from fedfew.deploy.messages.records import as_array, from_content, to_content

SERVERAPP = "FEDFEW_SERVERAPP"
"""Environment variable with the path of the socket on which the round loop waits."""
_BATCH = 8 << 20
"""Bytes of replies after which they are passed on before more are fetched."""

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve until the round loop disconnects."""
    with connect(SERVERAPP) as end:
        relay(grid, end)


def relay(grid: Grid, end: socket.socket) -> None:
    """Answer requests one by one; the run ends when the other side disconnects."""
    puller = ReplyPuller(grid)
    with contextlib.suppress(FrameError):
        while True:
            head, parts = receive(end)
            if head["do"] == "nodes":
                send(end, {"nodes": [_node_info(node) for node in grid.get_nodes()]}, {})
            elif head["do"] == "push":
                send(end, {"ids": _push(grid, head["messages"], parts)}, {})
            else:
                found, content = _pull(puller, head["limits"])
                send(end, {"replies": found}, content)


def _node_info(node: Any) -> dict[str, Any]:
    return {"id": str(node.node_id), "key": bytes(node.public_key).decode(errors="replace"), "name": node.name}


def _push(grid: Grid, addressed: list[dict[str, Any]], parts: Parts) -> list[str | None]:
    """Send all messages at once; a part that several of them share is hashed and uploaded once."""
    arrays = {name: as_array(part) for name, part in parts.items()}
    messages = []
    for one in addressed:
        content = to_content(one["head"], {name: arrays[place] for name, place in one["parts"].items()})
        kind = MessageType.TRAIN if one["head"]["kind"] == "train" else MessageType.QUERY
        ttl, group = float(one["ttl"]), str(one["group"])
        messages.append(Message(content, int(one["node"]), kind, ttl=ttl, group_id=group))
    ids = [str(one) if one else None for one in grid.push_messages(messages)] if messages else []
    return ids or [None] * len(addressed)


def _pull(puller: ReplyPuller, limits: Mapping[str, Sequence[int]]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Replies to these messages, a few megabytes at a time: head and parts, or an error code."""
    found: list[dict[str, Any]] = []
    content: dict[str, bytes] = {}
    for pulled in puller.pull({id_: (int(most), int(head)) for id_, (most, head) in limits.items()}):
        reply: dict[str, Any] = {"to": pulled.to}
        refused = pulled.refused
        if pulled.content is not None:
            try:
                reply["head"], parts = from_content(pulled.content, *limits[pulled.to])
                reply["parts"] = {name: f"{len(found)}/{name}" for name in parts}
                content |= {f"{len(found)}/{name}": part for name, part in parts.items()}
            except ContentError as error:
                refused = error
        elif refused is None:
            reply["error"] = pulled.error
        if refused is not None:
            reply["refused"] = [refused.code, str(refused)]
        found.append(reply)
        if sum(map(len, content.values())) > _BATCH:
            break
    return found, content
