"""The fleet of sites on Flower's Grid: the same rounds, payloads and replies as in one process.

A site serves the clients k with k mod S = its number; in a real network there are as many clients as sites, in a trial
on one machine a site may serve several. One message per site and round carries what all its sampled clients need.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Protocol

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.layout import Vector
from fedfew.core.types import ClientUpdate, Missing, Payload, Scores, nbytes
from fedfew.deploy.messages.answers import read_answers
from fedfew.deploy.messages.heads import ContentError, head_limit, parse_head
from fedfew.deploy.messages.pull import Pulled, ReplyPuller
from fedfew.deploy.messages.records import as_array, from_content, to_content
from fedfew.deploy.messages.tensors import pack

NO_LIMIT = 3600.0
"""Longest duration of a round in seconds if fleet.timeout is 0: a network needs a limit."""
_GRACE = 60.0
_POLL = 0.2
_FAREWELL = 10.0
_HELLO = 120.0
_FAULTS = {
    3: (Refusal.UNREACHABLE, "the message was not fetched in time"),
    4: (Refusal.UNREACHABLE, "its reply did not arrive completely"),
    5: (Refusal.UNREACHABLE, "its site went offline"),
    8: (Refusal.DIED, "Flower's process for the message ended"),
}
"""Flower's error code → ours. Its text is not passed on: a site could have written it."""
_FAILED = (Refusal.FAILED, "Flower could not run the site's app; the site's log says why")
Memories = dict[int, dict[str, Tensor]]


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
    """Public key → number of the site. Without keys a site is asked for its number."""

    def site_of(self, client: int) -> int:
        return client % len(self.sites)

    def clients_of(self, site: int) -> range:
        return range(site, self.clients, len(self.sites))


class MemoryStore(Protocol):
    """Clients' memories at sites that are on this machine."""

    def read(self) -> Memories: ...

    def replace(self, memory: Mapping[int, Mapping[str, Tensor]]) -> None: ...


@dataclass(eq=False)
class SiteMessage:
    """The message to one site in a round."""

    site: int
    clients: list[int]
    content: RecordDict
    size: int
    """Bytes of its tensors."""
    posted: bool = False
    tries: int = 0
    since: float = 0.0
    """When it was last posted."""


class GridFleet:
    """Trains clients at the nodes of a Grid, with deadlines of its own."""

    def __init__(
        self,
        grid: Grid,
        members: Membership,
        description: Mapping[str, Any],
        timeouts: Timeouts,
        score: Callable[[Vector, Vector | None], Scores],
        limit: int,
        memory: MemoryStore | None = None,
    ) -> None:
        """``description``: the fields of every message that say what is trained; ``limit``: bytes of a reply."""
        self._grid, self._members, self._timeouts = grid, members, timeouts
        self._description, self._score, self._limit, self._memory = dict(description), score, limit, memory
        self._puller = ReplyPuller(grid)
        self._nodes: dict[int, int] = {}
        """Site → node, of those online."""
        self._asked: dict[str, int] = {}
        """Message → node that was asked for its number."""
        self._numbers: dict[int, int | None] = {}
        """Node → the number it gave; None if it has none."""
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
            self._look()
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
        nodes = {int(node.node_id): bytes(node.public_key) for node in self._grid.get_nodes()}
        if self._members.keys:
            known = {node: self._members.keys.get(key.decode(errors="replace").strip()) for node, key in nodes.items()}
        else:
            self._ask_numbers(nodes)
            known = {node: number for node, number in self._numbered().items() if node in nodes}
        self._nodes = {
            site: node for node, site in known.items() if site is not None and site < len(self._members.sites)
        }

    def _ask_numbers(self, nodes: Iterable[int]) -> None:
        """Ask new nodes for their site's number; the answers arrive later."""
        new = [node for node in nodes if node not in self._numbers and node not in self._asked.values()]
        content = to_content({"kind": "hello"}, {})
        ids = self._push([content] * len(new), new, _HELLO, "hello")
        self._asked |= {id_: node for node, id_ in zip(new, ids, strict=True) if id_}
        for reply in self._pull(dict.fromkeys(self._asked, 0)):
            node = self._asked.pop(reply.to)
            try:
                text = None if reply.content is None else from_content(reply.content, 0, head_limit(0))[0]
                number = parse_head(text, head_limit(0)).get("site")
            except ContentError:
                continue  # it failed to answer, and is asked again
            self._numbers[node] = number if type(number) is int and number >= 0 else None

    def _numbered(self) -> dict[int, int]:
        """The site of each node that has answered: the number it gave, or else the next free one, by node id."""
        numbers = {node: number for node, number in self._numbers.items() if number is not None}
        free = (number for number in range(len(self._members.sites)) if number not in numbers.values())
        numbers |= dict(zip(sorted(self._numbers.keys() - numbers.keys()), free, strict=False))
        if self._met:  # from the first round on a node keeps its number
            self._numbers |= numbers
        return numbers

    # --- a round ---

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they arrive; those missing at the deadline are reported as missing, later ones as late."""
        self._traffic = {"down": 0, "up": 0, "messages": 0}
        limit = self._timeouts.timeout or NO_LIMIT
        deadline = monotonic() + limit
        open_, ids = self._write(round, payloads), dict[str, SiteMessage]()
        while open_ and monotonic() < deadline:
            yield from self._post(round, open_, ids, limit)
            clients = {id_: len(message.clients) for id_, message in ids.items()}
            idle = True
            for reply in self._pull(clients | {id_: len(late) for id_, (_, late) in self._late.items()}):
                yield from self._take(round, reply, open_, ids)
                idle = False
            for message in open_.values():
                if message.tries == 1 and monotonic() > message.since + limit / 2:
                    message.posted = False  # Flower hands a message out once; on a bad line it may not have arrived
            if open_ and idle:
                sleep(_POLL)
        for message in open_.values():
            yield from (Missing(k, Refusal.NO_ANSWER, f"no answer within {limit:g} s") for k in message.clients)
        self._late |= {id_: (round, message.clients) for id_, message in ids.items()}

    def _write(self, round: int, payloads: Mapping[int, Payload]) -> dict[int, SiteMessage]:
        """The message to each site; a vector that goes to several is copied and hashed once."""
        index, raw = pack({str(k): payload for k, payload in payloads.items()})
        arrays = {name: as_array(content) for name, content in raw.items()}
        messages = {}
        for site in sorted({self._members.site_of(k) for k in payloads}):
            clients = [k for k in payloads if self._members.site_of(k) == site]
            jobs = [{"client": k, "tensors": index[str(k)]} for k in clients]
            head = {"kind": "train", "round": round, "jobs": jobs} | self._description
            named = {k: {name: entry[0] for name, entry in index[str(k)].items()} for k in clients}
            used = {array: arrays[array] for k in clients for array in named[k].values() if array in arrays}
            small = [payloads[k][name] for k in clients for name, array in named[k].items() if array not in arrays]
            size = sum(len(raw[array]) for array in used) + sum(tensor.nbytes for tensor in small)
            messages[site] = SiteMessage(site, clients, to_content(head, used), size)
        return messages

    def _post(
        self, round: int, open_: dict[int, SiteMessage], ids: dict[str, SiteMessage], limit: float
    ) -> Iterator[Missing]:
        """Send what has not been sent."""
        waiting = [message for message in open_.values() if not message.posted]
        if not waiting:
            return
        self._look()
        for message in [message for message in waiting if message.site not in self._nodes]:
            waiting.remove(message)
            if message in ids.values():  # was posted before, and may still be answered
                message.posted, message.since = True, monotonic()
                continue
            del open_[message.site]
            what = f"site {self._members.sites[message.site]} is offline"
            yield from (Missing(k, Refusal.UNREACHABLE, what) for k in message.clients)
        contents, nodes = [message.content for message in waiting], [self._nodes[message.site] for message in waiting]
        new = self._push(contents, nodes, limit + min(limit, _GRACE), f"{round}")
        for message, id_ in zip(waiting, new, strict=True):
            self._traffic["down"] += message.size
            self._traffic["messages"] += 1
            message.posted, message.tries, message.since = True, message.tries + 1, monotonic()
            if id_:
                ids[id_] = message
            else:
                del open_[message.site]
                yield from (
                    Missing(k, Refusal.UNREACHABLE, "Flower did not accept the message") for k in message.clients
                )

    def _push(self, contents: Sequence[RecordDict], nodes: Sequence[int], ttl: float, group: str) -> list[str | None]:
        """Send a message to each node, all at once; the messages' ids, None where Flower did not accept one."""
        messages = [
            Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=group)
            for content, node in zip(contents, nodes, strict=True)
        ]
        ids: list[str | None] = [id_ or None for id_ in self._grid.push_messages(messages)] if messages else []
        return ids if len(ids) == len(messages) else [None] * len(messages)

    def _pull(self, clients: Mapping[str, int]) -> Iterator[Pulled]:
        """Replies that have arrived; the size limit of each depends on how many clients its message asked."""
        return self._puller.pull({id_: (self._limit * count, head_limit(count)) for id_, count in clients.items()})

    def _take(
        self, round: int, reply: Pulled, open_: dict[int, SiteMessage], ids: dict[str, SiteMessage]
    ) -> Iterator[ClientUpdate | Missing]:
        """Interpret a reply."""
        if reply.to in self._late:
            earlier, clients = self._late.pop(reply.to)
            if not reply.error:
                yield from (
                    Missing(k, Refusal.LATE, f"answer to round {earlier + 1} came after its end") for k in clients
                )
            return
        message = ids.pop(reply.to, None)
        if message is None:
            return
        if message.site not in open_:
            yield from (Missing(k, Refusal.TWICE, f"answered round {round + 1} again") for k in message.clients)
            return
        if reply.error:
            code, reason = _FAULTS.get(reply.error, _FAILED)
            if code == Refusal.DIED and message.tries < 2:
                message.posted = False  # only Flower's process for it died; the site itself may have the answer
                return
            del open_[message.site]
            yield from (Missing(k, code, reason) for k in message.clients)
            return
        del open_[message.site]
        for answer in self._read(round, reply, message.clients):
            if isinstance(answer, ClientUpdate):
                self._traffic["up"] += nbytes(answer.reply)
            yield answer

    def _read(self, round: int, reply: Pulled, clients: list[int]) -> Iterator[ClientUpdate | Missing]:
        """The answers of a site's clients."""
        try:
            if reply.refused is not None:
                raise reply.refused
            assert reply.content is not None
            text, arrays = from_content(reply.content, self._limit * len(clients), head_limit(len(clients)))
        except ContentError as error:
            yield from (Missing(k, error.code, str(error)) for k in clients)
            return
        yield from read_answers(self._description["run"], round, clients, text, arrays, self._limit)

    # --- the rest of the Fleet protocol ---

    def traffic(self) -> dict[str, int]:
        """Bytes of tensors that actually travelled in the last round."""
        return dict(self._traffic)

    def score(self, omega: Vector, clients: Vector | None = None) -> "_Later":
        """Scored here: the server has the test images."""
        return _Later(self._score, omega, clients)

    def memory(self) -> Memories:
        """Clients' memories, where the sites are on this machine; otherwise they stay on the sites' disks."""
        return {} if self._memory is None else self._memory.read()

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """Give the clients their memories; a real site restores its own by the number of the round."""
        if self._memory is not None:
            self._memory.replace(memory)
        elif memory:
            what = "its checkpoints hold clients' tensors, which cannot be moved to real sites"
            raise FedfewError("E113", "fleet.kind", what, "Continue with fleet.kind = 'pool'")

    def end(self) -> None:
        """Inform the sites that are online that the run is over; waits briefly so that the messages can leave."""
        self._look()
        content = to_content({"kind": "over", "run": self._description["run"]}, {})
        nodes = list(self._nodes.values())
        ids = self._push([content] * len(nodes), nodes, _GRACE, "over")
        waiting, deadline = dict.fromkeys((id_ for id_ in ids if id_), 0), monotonic() + _FAREWELL
        while waiting and monotonic() < deadline:
            for reply in self._pull(dict(waiting)):
                waiting.pop(reply.to, None)
            sleep(_POLL if waiting else 0)

    def close(self) -> None:
        """Nothing to end: the Grid belongs to the ServerApp."""


@dataclass(frozen=True, eq=False)
class _Later:
    score: Callable[[Vector, Vector | None], Scores]
    omega: Vector
    clients: Vector | None

    def result(self) -> Scores:
        return self.score(self.omega, self.clients)
