"""The ServerApp: carries messages between the process that runs the rounds and Flower's Grid, and decides nothing.

The round loop lives in the process the user started: if Flower's processes die, it starts them again and goes on.
"""

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedfew.deploy.flower.frames import FrameError, Parts, connect, receive, send
from fedfew.deploy.flower.records import as_array, from_content, to_content

SERVERAPP = "FEDFEW_SERVERAPP"
"""Environment variable with the path of the socket on which the round loop waits."""

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve until the round loop disconnects."""
    with connect(SERVERAPP) as end:
        relay(grid, end)


def relay(grid: Grid, end: socket.socket) -> None:
    """Answer requests one by one; the run ends when the other side disconnects."""
    with contextlib.suppress(FrameError):
        while True:
            head, parts = receive(end)
            if head["do"] == "nodes":
                send(end, {"nodes": [_node_info(node) for node in grid.get_nodes()]}, {})
            elif head["do"] == "push":
                send(end, {"ids": _push(grid, head["messages"], parts)}, {})
            else:
                found, content = _pull(grid, head)
                send(end, {"replies": found}, content)


def _node_info(node: Any) -> dict[str, Any]:
    return {"id": str(node.node_id), "key": bytes(node.public_key).decode(errors="replace"), "name": node.name}


def _push(grid: Grid, addressed: list[dict[str, Any]], parts: Parts) -> list[str | None]:
    """Send all messages at once; a part that stands in several of them is hashed and uploaded once."""
    arrays = {name: as_array(part) for name, part in parts.items()}
    messages = []
    for one in addressed:
        content = to_content(one["head"], {name: arrays[place] for name, place in one["parts"].items()})
        kind = MessageType.QUERY if one["head"]["kind"] == "hello" else MessageType.TRAIN
        ttl, group = float(one["ttl"]), str(one["group"])
        messages.append(Message(content, int(one["node"]), kind, ttl=ttl, group_id=group))
    ids = [str(one) if one else None for one in grid.push_messages(messages)] if messages else []
    return ids or [None] * len(addressed)


def _pull(grid: Grid, head: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """What has come for these ids: a head and parts each, or an error. One that cannot be read is an error too."""
    found: list[dict[str, Any]] = []
    content: dict[str, bytes] = {}
    for message in grid.pull_messages(head["ids"]) if head["ids"] else []:
        reply: dict[str, Any] = {"to": message.metadata.reply_to_message_id}
        if message.has_error():
            reply["error"] = [int(message.error.code), str(message.error.reason)]
        else:
            try:
                reply["head"], parts = from_content(message.content, int(head["limit"]))
            except ValueError as error:
                reply["unreadable"] = str(error)
                parts = {}
            reply["parts"] = {name: f"{len(found)}/{name}" for name in parts}
            content |= {f"{len(found)}/{name}": part for name, part in parts.items()}
        found.append(reply)
    return found, content
