"""The sites of a network, and which of them are online."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep

from fedfew.config.tree import FleetSettings
from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.heads import ContentError, head_limit, parse_head
from fedfew.deploy.messages.post import Post
from fedfew.deploy.messages.records import from_content, to_content

_HELLO = 120.0


@dataclass(frozen=True)
class Membership:
    """The sites of the network: site s serves the clients k with k mod S = s."""

    sites: Sequence[str]
    clients: int
    keys: Mapping[str, int] = field(default_factory=dict)
    """Public key → number of the site. Without keys a node is asked for its number."""

    @property
    def asked(self) -> int:
        """How many clients the run asks to take part."""
        numbers = set(self.keys.values()) if self.keys else range(len(self.sites))
        return sum(len(self.clients_of(number)) for number in numbers)

    def site_of(self, client: int) -> int:
        return client % len(self.sites)

    def clients_of(self, site: int) -> range:
        return range(site, self.clients, len(self.sites))


@dataclass(eq=False)
class Attendance:
    """Which node is which site, of those online."""

    post: Post
    members: Membership
    nodes: dict[int, int] = field(default_factory=dict)
    """Site → node, as of the last look."""
    _asked: dict[str, int] = field(default_factory=dict)
    """Message → node that was asked for its number."""
    _numbers: dict[int, int | None] = field(default_factory=dict)
    """Node → the number it gave; None if it has none."""
    _met: bool = False

    def wait(self, settings: FleetSettings) -> list[int]:
        """The clients whose sites can be reached, sorted; waits for as many as a round needs, then raises E503."""
        members, deadline = self.members, monotonic() + settings.wait
        need = settings.min_clients or (1 if self._met else members.asked)
        while True:
            self.look()
            clients = sorted(k for site in self.nodes for k in members.clients_of(site))
            if len(clients) >= min(need, members.asked):
                self._met = True
                return clients
            if monotonic() > deadline:
                away = ", ".join(name for i, name in enumerate(members.sites) if i not in self.nodes)
                reason = f"{len(clients)} of {need} clients were online after {settings.wait:g} s; offline: {away}"
                raise FedfewError("E503", "network", reason)
            sleep(0.5)

    def look(self) -> None:
        """Find the node of every site that is online."""
        online = self.post.nodes()
        if self.members.keys:
            numbers = {node: self.members.keys.get(key.strip()) for node, key in online.items()}
        else:
            self._ask_numbers(online)
            numbers = {node: number for node, number in self._numbered().items() if node in online}
        self.nodes = {
            site: node for node, site in numbers.items() if site is not None and site < len(self.members.sites)
        }

    def _ask_numbers(self, nodes: Iterable[int]) -> None:
        """Ask new nodes for their site's number; the answers arrive later."""
        new = [node for node in nodes if node not in self._numbers and node not in self._asked.values()]
        ids = self.post.push([to_content('{"kind": "hello"}', {})] * len(new), new, _HELLO, "hello")
        self._asked |= {id_: node for node, id_ in zip(new, ids, strict=True) if id_}
        for reply in self.post.pull(dict.fromkeys(self._asked, 0)):
            node = self._asked.pop(reply.to)
            try:
                text = None if reply.content is None else from_content(reply.content, 0)[0]
                number = parse_head(text, head_limit(0)).get("site")
            except ContentError:
                continue  # it failed to answer, and is asked again
            self._numbers[node] = number if type(number) is int and number >= 0 else None

    def _numbered(self) -> dict[int, int]:
        """The site of each node that has answered: the number it gave, or else the next free one, by node id."""
        numbers = {node: number for node, number in self._numbers.items() if number is not None}
        free = (number for number in range(len(self.members.sites)) if number not in numbers.values())
        numbers |= dict(zip(sorted(self._numbers.keys() - numbers.keys()), free, strict=False))
        if self._met:  # from the first round on a node keeps its number
            self._numbers |= numbers
        return numbers
