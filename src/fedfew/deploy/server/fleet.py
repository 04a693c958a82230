"""The fleet of real sites, reached through Flower: the same rounds, payloads and replies as in one process.

A site serves the clients k with k mod S = its number; in a real network there are as many clients as sites, in a trial
on one machine a site may serve several. One message per site and round carries what all its sampled clients need.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import numpy as np
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.types import ClientUpdate, Missing, Payload, Scores
from fedfew.deploy.messages.answers import read_answers
from fedfew.deploy.messages.frames import LIMIT
from fedfew.deploy.messages.heads import ContentError, head_limit, parse_head
from fedfew.deploy.messages.tensors import pack
from fedfew.deploy.server.connection import Connection, ConnectionLostError

NO_LIMIT = 3600.0
"""Longest duration of a round in seconds if fleet.timeout is 0: a network needs a limit."""
_GRACE = 60.0
_POLL = 0.2
_FAREWELL = 10.0
_FAULTS = {
    3: ("E416", "the message was not fetched in time"),
    4: ("E416", "its reply did not arrive completely"),
    5: ("E416", "its site went offline"),
    8: ("E409", "Flower's process for the message ended"),
}
"""Flower's error code → ours. Its text is not passed on: a site could have written it."""
_FAILED = ("E408", "Flower could not run the site's app; the site's log says why")


@dataclass(frozen=True)
class Timeouts:
    """How long to wait, and for how many clients."""

    timeout: float = 0.0
    wait: float = 300.0
    min_clients: int = 0
    """Clients that must be online for a round to start; 0: all at the start, later at least one."""


@dataclass(frozen=True)
class Membership:
    """The sites of the network."""

    sites: Sequence[str]
    clients: int
    keys: Mapping[str, int] = field(default_factory=dict)
    """Public key → number of the site. Without keys (insecure, on loopback) a site is asked for its number."""

    def site_of(self, client: int) -> int:
        return client % len(self.sites)

    def clients_of(self, site: int) -> range:
        return range(site, self.clients, len(self.sites))


@dataclass(eq=False)
class SiteMessage:
    """The message to one site in a round."""

    site: int
    clients: list[int]
    head: dict[str, Any]
    parts: dict[str, memoryview]
    posted: bool = False
    tries: int = 0
    since: float = 0.0
    """When it was last posted."""


class FlowerFleet:
    """Trains clients at sites that Flower connects; if the connection breaks, open messages are sent again."""

    def __init__(
        self,
        connection: Connection,
        members: Membership,
        run_description: Mapping[str, Any],
        timeouts: Timeouts,
        score_here: Callable[[Vector, Vector | None], Scores],
        limit: int = LIMIT,
        shut_down: Callable[[], None] = lambda: None,
        hand_over: Callable[[Mapping[int, dict[str, Tensor]]], None] | None = None,
    ) -> None:
        self._connection, self._members, self._timeouts = connection, members, timeouts
        self._description = dict(run_description)
        self._score_here, self._limit, self._shut_down, self._hand_over = score_here, limit, shut_down, hand_over
        self._nodes: dict[int, str] = {}
        self._asked: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._late: dict[str, tuple[int, list[int]]] = {}
        self._met = False
        self._traffic = {"down": 0, "up": 0, "messages": 0}

    # --- who is online ---

    def online(self) -> list[int]:
        """The clients whose sites can be reached, sorted; waits for as many as a round needs, then raises E503."""
        members, timeouts = self._members, self._timeouts
        need = timeouts.min_clients or (1 if self._met else members.clients)
        deadline = monotonic() + timeouts.wait
        while True:
            try:
                self._look()
            except ConnectionLostError:
                self._nodes = {}
            clients = sorted(k for site in self._nodes for k in members.clients_of(site))
            if len(clients) >= min(need, members.clients):
                self._met = True
                return clients
            if monotonic() > deadline:
                away = ", ".join(name for i, name in enumerate(members.sites) if i not in self._nodes)
                what = f"{len(clients)} of {need} clients were online after {timeouts.wait:g} s; offline: {away}"
                raise FedfewError("E503", "network", what)
            sleep(0.5)

    def _look(self) -> None:
        """Find the node of every site that is online."""
        nodes = self._connection.request({"do": "nodes"}, {})[0]["nodes"]
        if self._members.keys:
            known = {node["id"]: self._members.keys.get(node["key"].strip()) for node in nodes}
        else:
            self._ask_numbers([node["id"] for node in nodes])
            known = {node["id"]: self._numbers.get(node["id"]) for node in nodes}
        self._nodes = {
            site: node for node, site in known.items() if site is not None and site < len(self._members.sites)
        }

    def _ask_numbers(self, nodes: list[str]) -> None:
        """Ask new nodes for their site's number; the answers arrive later."""
        new = [node for node in nodes if node not in self._numbers and node not in self._asked.values()]
        messages = [self._address(node, {"kind": "hello"}, {}, 120.0, "hello") for node in new]
        try:
            if messages:
                ids = self._connection.request({"do": "push", "messages": messages}, {})[0]["ids"]
                self._asked |= {id_: node for id_, node in zip(ids, new, strict=True) if id_}
            for reply in self._pull(dict.fromkeys(self._asked, 0))[0] if self._asked else []:
                node = self._asked.pop(reply["to"])
                with contextlib.suppress(ContentError):
                    number = parse_head(reply.get("head"), head_limit(0)).get("site")
                    if type(number) is int and number >= 0:
                        self._numbers[node] = number
        except ConnectionLostError:
            self._asked.clear()
            raise

    # --- a round ---

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they arrive; those missing at the deadline are reported as missing, later ones as late."""
        self._traffic = {"down": 0, "up": 0, "messages": 0}
        limit = self._timeouts.timeout or NO_LIMIT
        deadline = monotonic() + limit
        messages = {
            site: self._write(round, site, payloads) for site in sorted({self._members.site_of(k) for k in payloads})
        }
        open_, ids = dict(messages), dict[str, SiteMessage]()
        while open_ and monotonic() < deadline:
            try:
                yield from self._post(round, open_, ids, limit)
                replies, parts = self._pull(
                    {id_: len(message.clients) for id_, message in ids.items()}
                    | {id_: len(clients) for id_, (_, clients) in self._late.items()}
                )
            except ConnectionLostError:  # a new Flower run has begun: earlier messages can no longer be answered
                ids.clear()
                self._late.clear()
                for message in open_.values():
                    message.posted = False
                continue
            for reply in replies:
                yield from self._take(round, reply, parts, open_, ids)
            for message in open_.values():
                if message.tries == 1 and monotonic() > message.since + limit / 2:
                    message.posted = False  # Flower hands a message out once; on a bad line it may not have arrived
            if open_ and not replies:
                sleep(_POLL)
        for message in open_.values():
            yield from (Missing(k, "E410", f"no answer within {limit:g} s") for k in message.clients)
        self._late |= {id_: (round, message.clients) for id_, message in ids.items()}

    def _write(self, round: int, site: int, payloads: Mapping[int, Payload]) -> SiteMessage:
        clients = [k for k in payloads if self._members.site_of(k) == site]
        index, parts = pack({str(k): payloads[k] for k in clients})
        jobs = [{"client": k, "tensors": index[str(k)]} for k in clients]
        return SiteMessage(site, clients, {"kind": "train", "round": round, "jobs": jobs} | self._description, parts)

    def _post(
        self, round: int, open_: dict[int, SiteMessage], ids: dict[str, SiteMessage], limit: float
    ) -> Iterator[Missing]:
        """Send what has not been sent; a part shared by several messages is uploaded to Flower once."""
        waiting = [message for message in open_.values() if not message.posted]
        if not waiting:
            return
        self._look()
        gone = [message for message in waiting if message.site not in self._nodes]
        for message in gone:
            if message in ids.values():  # was posted before, and may still be answered
                message.posted, message.since = True, monotonic()
                continue
            del open_[message.site]
            yield from (
                Missing(k, "E416", f"site {self._members.sites[message.site]} is offline") for k in message.clients
            )
        there = [message for message in waiting if message.site in self._nodes]
        shared: dict[tuple[int, int], str] = {}
        parts: dict[str, memoryview] = {}
        addressed = []
        for message in there:
            places = {name: _share(part, shared, parts) for name, part in message.parts.items()}
            node = self._nodes[message.site]
            addressed.append(self._address(node, message.head, places, limit + min(limit, _GRACE), f"{round}"))
            self._traffic["down"] += sum(len(part) for part in message.parts.values())
            self._traffic["messages"] += 1
        if not there:
            return
        answer = self._connection.request({"do": "push", "messages": addressed}, parts)[0]["ids"]
        for message, id_ in zip(there, answer, strict=True):
            message.posted, message.tries, message.since = True, message.tries + 1, monotonic()
            if id_:
                ids[id_] = message
            else:
                del open_[message.site]
                yield from (Missing(k, "E416", "Flower did not accept the message") for k in message.clients)

    @staticmethod
    def _address(node: str, head: dict[str, Any], places: dict[str, str], ttl: float, group: str) -> dict[str, Any]:
        return {"node": node, "head": head, "parts": places, "ttl": ttl, "group": group}

    def _pull(self, clients: Mapping[str, int]) -> tuple[list[dict[str, Any]], dict[str, memoryview]]:
        """Replies that have arrived; the size limit of each depends on how many clients its message asked."""
        limits = {id_: [self._limit * count, head_limit(count)] for id_, count in clients.items()}
        head, parts = self._connection.request({"do": "pull", "limits": limits}, {})
        return head["replies"], parts

    def _take(
        self,
        round: int,
        reply: dict[str, Any],
        parts: Mapping[str, memoryview],
        open_: dict[int, SiteMessage],
        ids: dict[str, SiteMessage],
    ) -> Iterator[ClientUpdate | Missing]:
        """Interpret a reply to this round."""
        id_ = reply["to"]
        if id_ in self._late:
            earlier, clients = self._late.pop(id_)
            if "error" not in reply:
                yield from (Missing(k, "E413", f"answer to round {earlier + 1} came after its end") for k in clients)
            return
        message = ids.pop(id_, None)
        if message is None:
            return
        if message.site not in open_:
            yield from (Missing(k, "E414", f"answered round {round + 1} again") for k in message.clients)
            return
        if "error" in reply:
            code, reason = _FAULTS.get(reply["error"], _FAILED)
            if code == "E409" and message.tries < 2:
                message.posted = False  # only Flower's process for it died; the site itself may have the answer
                return
            del open_[message.site]
            yield from (Missing(k, code, reason) for k in message.clients)
            return
        del open_[message.site]
        if "refused" in reply:
            yield from (Missing(k, *reply["refused"]) for k in message.clients)
            return
        mine = {name: parts[place] for name, place in reply.get("parts", {}).items()}
        self._traffic["up"] += sum(len(part) for part in mine.values())
        yield from read_answers(self._description["run"], round, message.clients, reply["head"], mine, self._limit)

    # --- the rest of the Fleet protocol ---

    def traffic(self) -> dict[str, int]:
        """Bytes of tensors that actually travelled in the last round."""
        return dict(self._traffic)

    def score(self, omega: Vector, clients: Vector | None = None) -> "_Later":
        """Scored here: the server has the test images."""
        return _Later(self._score_here, omega, clients)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        """Empty: a client's memory stays on its site's disk."""
        return {}

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """A site restores its own memory by round number; another fleet's memory can only move to a trial's sites."""
        if memory and self._hand_over is not None:
            self._hand_over(memory)
        elif memory:
            what = "its checkpoints hold clients' tensors, which cannot be moved to real sites"
            raise FedfewError("E113", "fleet.kind", what, "Continue with fleet.kind = 'pool'")

    def end(self) -> None:
        """Inform the sites that are online that the run is over; waits briefly so that the messages can leave."""
        head, deadline = {"kind": "over", "run": self._description["run"]}, monotonic() + _FAREWELL
        with contextlib.suppress(ConnectionLostError):  # the run is done, whether or not they hear of it
            self._look()
            messages = [self._address(node, head, {}, _GRACE, "over") for node in self._nodes.values()]
            ids = self._connection.request({"do": "push", "messages": messages}, {})[0]["ids"] if messages else []
            waiting = dict.fromkeys((id_ for id_ in ids if id_), 0)
            while waiting and monotonic() < deadline:
                for reply in self._pull(waiting)[0]:
                    waiting.pop(reply["to"], None)
                sleep(_POLL if waiting else 0)

    def close(self) -> None:
        """End the Flower run and everything started for it."""
        self._connection.close()
        self._shut_down()


@dataclass(frozen=True, eq=False)
class _Later:
    score: Callable[[Vector, Vector | None], Scores]
    omega: Vector
    clients: Vector | None

    def result(self) -> Scores:
        return self.score(self.omega, self.clients)


def _share(part: memoryview, shared: dict[tuple[int, int], str], parts: dict[str, memoryview]) -> str:
    """The name under which a part travels; messages that share its memory share the name."""
    address = np.frombuffer(part, np.uint8).__array_interface__["data"][0] if len(part) else 0
    name = shared.setdefault((address, len(part)), str(len(parts)))
    parts.setdefault(name, part)
    return name
