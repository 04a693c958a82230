"""The fleet of real sites, reached through Flower: the same rounds, payloads and replies as in one process.

A site serves the clients k with k mod S = its number; in a real network there are as many clients as sites, in a trial
on one machine a site may serve several. One message a site and round carries what all its sampled clients need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import numpy as np
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.types import ClientUpdate, Missing, Payload, Scores
from fedfew.deploy.flower.answers import read_answers
from fedfew.deploy.flower.frames import LIMIT
from fedfew.deploy.flower.line import Line, LineLostError
from fedfew.deploy.flower.tensors import pack

NO_LIMIT = 3600.0
"""Seconds a round lasts at most where fleet.timeout is 0: a network needs some end."""
_GRACE = 60.0
_POLL = 0.2
# Flower's error codes → ours: 3, 4 message or reply gone, 5 node gone, 8 ClientApp process gone; all others: it raised
_FAULTS = {3: "E416", 4: "E416", 5: "E416", 8: "E409"}


@dataclass(frozen=True)
class Terms:
    """How long to wait, and for how many."""

    timeout: float = 0.0
    wait: float = 300.0
    min_clients: int = 0
    """Clients that must be online for a round to start; 0: all at the start, later at least one."""


@dataclass(frozen=True)
class Roll:
    """Who belongs to the network."""

    sites: Sequence[str]
    clients: int
    keys: Mapping[str, int] = field(default_factory=dict)
    """Public key → number of the site. Without keys (insecure, on loopback) a site is asked for its number."""

    def site_of(self, client: int) -> int:
        return client % len(self.sites)

    def clients_of(self, site: int) -> range:
        return range(site, self.clients, len(self.sites))


@dataclass(eq=False)
class _Letter:
    """What goes to one site in a round."""

    site: int
    clients: list[int]
    head: dict[str, Any]
    parts: dict[str, memoryview]
    posted: bool = False
    tries: int = 0


class FlowerFleet:
    """Trains clients at sites that Flower connects; if the line breaks, letters still open are sent again."""

    def __init__(
        self,
        line: Line,
        roll: Roll,
        greeting: Mapping[str, Any],
        terms: Terms,
        score_here: Callable[[Vector], Scores],
        limit: int = LIMIT,
        shut_down: Callable[[], None] = lambda: None,
        hand_over: Callable[[Mapping[int, dict[str, Tensor]]], None] | None = None,
    ) -> None:
        self._line, self._roll, self._greeting, self._terms = line, roll, dict(greeting), terms
        self._score_here, self._limit, self._shut_down, self._hand_over = score_here, limit, shut_down, hand_over
        self._nodes: dict[int, str] = {}
        self._asked: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._late: dict[str, tuple[int, list[int]]] = {}
        self._met = False
        self._traffic = {"down": 0, "up": 0, "messages": 0}

    # --- who is there ---

    def online(self) -> list[int]:
        """The clients whose sites can be reached, sorted; waits for as many as a round needs, then E503."""
        roll, terms = self._roll, self._terms
        need = terms.min_clients or (1 if self._met else roll.clients)
        deadline = monotonic() + terms.wait
        while True:
            try:
                self._look()
            except LineLostError:
                self._nodes = {}
            clients = sorted(k for site in self._nodes for k in roll.clients_of(site))
            if len(clients) >= min(need, roll.clients):
                self._met = True
                return clients
            if monotonic() > deadline:
                away = ", ".join(name for i, name in enumerate(roll.sites) if i not in self._nodes)
                what = f"{len(clients)} of {need} clients were online after {terms.wait:g} s; offline: {away}"
                raise FedfewError("E503", "network", what)
            sleep(0.5)

    def _look(self) -> None:
        """Find the node of every site that is online."""
        nodes = self._line.request({"do": "nodes"}, {})[0]["nodes"]
        if self._roll.keys:
            known = {node["id"]: self._roll.keys.get(node["key"].strip()) for node in nodes}
        else:
            self._ask_numbers([node["id"] for node in nodes])
            known = {node["id"]: self._numbers.get(node["id"]) for node in nodes}
        self._nodes = {site: node for node, site in known.items() if site is not None and site < len(self._roll.sites)}

    def _ask_numbers(self, nodes: list[str]) -> None:
        """Ask nodes that are new for their site's number; the answers come in by and by."""
        new = [node for node in nodes if node not in self._numbers and node not in self._asked.values()]
        letters = [self._address(node, {"kind": "hello"}, {}, 120.0, "hello") for node in new]
        try:
            if letters:
                ids = self._line.request({"do": "push", "letters": letters}, {})[0]["ids"]
                self._asked |= {id_: node for id_, node in zip(ids, new, strict=True) if id_}
            for reply in self._pull(list(self._asked))[0] if self._asked else []:
                node = self._asked.pop(reply["to"])
                number = reply.get("head", {}).get("site")
                if isinstance(number, int) and number >= 0:
                    self._numbers[node] = number
        except LineLostError:
            self._asked.clear()
            raise

    # --- a round ---

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they come in; what is missing at the deadline is told as such, what comes later as late."""
        self._traffic = {"down": 0, "up": 0, "messages": 0}
        limit = self._terms.timeout or NO_LIMIT
        deadline = monotonic() + limit
        letters = {
            site: self._write(round, site, payloads) for site in sorted({self._roll.site_of(k) for k in payloads})
        }
        open_, ids = dict(letters), dict[str, _Letter]()
        while open_ and monotonic() < deadline:
            try:
                yield from self._post(round, open_, ids, limit)
                replies, parts = self._pull([*ids, *self._late])
            except LineLostError:  # a new Flower run has begun: nothing posted before can be answered any more
                ids.clear()
                self._late.clear()
                for letter in open_.values():
                    letter.posted = False
                continue
            for reply in replies:
                yield from self._take(round, reply, parts, open_, ids)
            if open_ and not replies:
                sleep(_POLL)
        for letter in open_.values():
            yield from (Missing(k, "E410", f"no answer within {limit:g} s") for k in letter.clients)
        self._late |= {id_: (round, letter.clients) for id_, letter in ids.items()}

    def _write(self, round: int, site: int, payloads: Mapping[int, Payload]) -> _Letter:
        clients = [k for k in payloads if self._roll.site_of(k) == site]
        index, parts = pack({str(k): payloads[k] for k in clients})
        jobs = [{"client": k, "tensors": index[str(k)]} for k in clients]
        return _Letter(site, clients, {"kind": "train", "round": round, "jobs": jobs} | self._greeting, parts)

    def _post(self, round: int, open_: dict[int, _Letter], ids: dict[str, _Letter], limit: float) -> Iterator[Missing]:
        """Send what has not been sent; a part that several letters hold travels to Flower once."""
        waiting = [letter for letter in open_.values() if not letter.posted]
        if not waiting:
            return
        self._look()
        gone = [letter for letter in waiting if letter.site not in self._nodes]
        for letter in gone:
            del open_[letter.site]
            yield from (Missing(k, "E416", f"site {self._roll.sites[letter.site]} is offline") for k in letter.clients)
        there = [letter for letter in waiting if letter.site in self._nodes]
        shared: dict[tuple[int, int], str] = {}
        parts: dict[str, memoryview] = {}
        addressed = []
        for letter in there:
            places = {name: _share(part, shared, parts) for name, part in letter.parts.items()}
            node = self._nodes[letter.site]
            addressed.append(self._address(node, letter.head, places, limit + min(limit, _GRACE), f"{round}"))
            self._traffic["down"] += sum(len(part) for part in letter.parts.values())
            self._traffic["messages"] += 1
        if not there:
            return
        answer = self._line.request({"do": "push", "letters": addressed}, parts)[0]["ids"]
        for letter, id_ in zip(there, answer, strict=True):
            letter.posted, letter.tries = True, letter.tries + 1
            if id_:
                ids[id_] = letter
            else:
                del open_[letter.site]
                yield from (Missing(k, "E416", "Flower did not take the message") for k in letter.clients)

    @staticmethod
    def _address(node: str, head: dict[str, Any], places: dict[str, str], ttl: float, group: str) -> dict[str, Any]:
        return {"node": node, "head": head, "parts": places, "ttl": ttl, "group": group}

    def _pull(self, ids: list[str]) -> tuple[list[dict[str, Any]], dict[str, memoryview]]:
        head, parts = self._line.request({"do": "pull", "ids": ids, "limit": self._limit}, {})
        return head["replies"], parts

    def _take(
        self,
        round: int,
        reply: dict[str, Any],
        parts: Mapping[str, memoryview],
        open_: dict[int, _Letter],
        ids: dict[str, _Letter],
    ) -> Iterator[ClientUpdate | Missing]:
        """What a reply means for this round."""
        id_ = reply["to"]
        if id_ in self._late:
            earlier, clients = self._late.pop(id_)
            if "error" not in reply:
                yield from (Missing(k, "E413", f"answer to round {earlier + 1} came after its end") for k in clients)
            return
        letter = ids.pop(id_, None)
        if letter is None:
            return
        if letter.site not in open_:
            yield from (Missing(k, "E414", f"answered round {round + 1} again") for k in letter.clients)
            return
        if "error" in reply:
            code = _FAULTS.get(reply["error"][0], "E408")
            if code == "E409" and letter.tries < 2:
                letter.posted = False  # only Flower's process for the message died; the site itself may have the answer
                return
            del open_[letter.site]
            yield from (Missing(k, code, reply["error"][1][:300]) for k in letter.clients)
            return
        del open_[letter.site]
        mine = {name: parts[place] for name, place in reply.get("parts", {}).items()}
        self._traffic["up"] += sum(len(part) for part in mine.values())
        yield from read_answers(self._greeting["run"], round, letter.clients, reply, mine)

    # --- the rest of the seam ---

    def traffic(self) -> dict[str, int]:
        """What really travelled in the last round, in bytes of tensors."""
        return dict(self._traffic)

    def score(self, omega: Vector) -> "_Later":
        """Scored here: the test images are the server's."""
        return _Later(self._score_here, omega)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        """Nothing: what a client keeps stays on its site's disk."""
        return {}

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """A site restores its own memory by the round's number; another fleet's can move to a trial's sites only."""
        if memory and self._hand_over is not None:
            self._hand_over(memory)
        elif memory:
            what = "the clients of this run keep tensors in its checkpoints, which cannot be handed to real sites"
            raise FedfewError("E113", "fleet.kind", what, "Go on with fleet.kind = 'pool'")

    def close(self) -> None:
        """End the Flower run and whatever was started for it."""
        self._line.close()
        self._shut_down()


@dataclass(frozen=True, eq=False)
class _Later:
    score: Callable[[Vector], Scores]
    omega: Vector

    def result(self) -> Scores:
        return self.score(self.omega)


def _share(part: memoryview, shared: dict[tuple[int, int], str], parts: dict[str, memoryview]) -> str:
    """The name under which a part travels: the same for letters that hold the same memory."""
    address = np.frombuffer(part, np.uint8).__array_interface__["data"][0] if len(part) else 0
    name = shared.setdefault((address, len(part)), str(len(parts)))
    parts.setdefault(name, part)
    return name
