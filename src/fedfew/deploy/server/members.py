"""The sites of a network, and which of them are online."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from fedfew.config.tree import FleetSettings
from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.heads import LONGEST_NAME, ContentError, head_limit, parse_head, plan_hash
from fedfew.deploy.messages.post import Post
from fedfew.deploy.messages.records import from_content, to_content

if TYPE_CHECKING:  # where a run has secure sums
    from fedfew.secure.identity import Identity

_HELLO = 120.0
_AGAIN = 20.0
"""Seconds until a site that has not agreed is asked again."""
AGREED, UNDECIDED, DECLINED = "agreed", "waiting", ("refused", "paused")


@dataclass(frozen=True)
class Membership:
    """The sites of the network: site s serves the clients k with k mod S = s."""

    sites: Sequence[str]
    clients: int
    keys: Mapping[str, int] = field(default_factory=dict)
    """Public key → number of the site. Without keys a node is asked for its number."""
    identity: "Identity | None" = None
    """The keys that the network's authority has signed, for sites in secure sums."""

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
class Agreements:
    """What each site answers to the run; a site that has not agreed is asked again from time to time."""

    question: Mapping[str, Any]
    """The fields of a message that say what is trained."""
    note: Callable[[int, Mapping[str, Any]], None]
    """Called with every new answer of a site, for the audit log."""
    answers: dict[int, str] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    """Message → site."""
    _next: dict[int, float] = field(default_factory=dict)

    def sites(self, *answers: str) -> list[int]:
        """The sites with one of these answers."""
        return [site for site, answer in self.answers.items() if answer in answers]

    def withdraw(self, site: int) -> None:
        """A site that had agreed declined a message: it is asked again."""
        self.answers[site], self._next[site] = UNDECIDED, 0.0

    def ask(self, post: Post, nodes: Mapping[int, int]) -> None:
        """Take the answers that came, and ask the sites online that have not agreed."""
        for reply in post.pull(dict.fromkeys(self._asked, 1)):
            site = self._asked.pop(reply.to)
            told = self._told(None if reply.content is None else from_content(reply.content, 0)[0])
            if told.get("answer") != self.answers.get(site):
                self.note(site, told)
            self.answers[site] = told.get("answer", "")
        now = monotonic()
        due = [site for site in nodes if self.answers.get(site) != AGREED and self._next.get(site, 0.0) <= now]
        content = to_content(json.dumps({"kind": "ask"} | dict(self.question)), {})
        ids = post.push([content] * len(due), [nodes[site] for site in due], _HELLO, "ask")
        self._asked |= {id_: site for site, id_ in zip(due, ids, strict=True) if id_}
        self._next |= dict.fromkeys(due, now + _AGAIN)

    def _told(self, text: object) -> dict[str, Any]:
        """A site's answer; nothing if it is none to this plan."""
        try:
            told = parse_head(text, head_limit(0))
        except ContentError:
            return {}
        if told.get("answer") not in (AGREED, UNDECIDED, *DECLINED) or told.get("plan") != plan_hash(self.question):
            return {}
        claimed = told.get("versions")
        pairs = list(claimed.items())[:8] if isinstance(claimed, dict) else []
        versions = {key[:LONGEST_NAME]: value[:LONGEST_NAME] for key, value in pairs if isinstance(value, str)}
        return {key: told[key] for key in ("plan", "answer")} | {"versions": versions}


@dataclass(eq=False)
class Attendance:
    """Which node is which site, of those online."""

    post: Post
    members: Membership
    agreement: "Agreements | None" = None
    """The sites' answers to the run, where it asks them."""
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
        while True:
            self.look()
            declined = self.agreement.sites(*DECLINED) if self.agreement else []
            asked = members.asked - sum(len(members.clients_of(site)) for site in declined)
            need = settings.min_clients or (1 if self._met else max(asked, 1))
            clients = sorted(k for site in self.nodes for k in members.clients_of(site))
            if len(clients) >= min(need, members.asked):
                self._met = True
                return clients
            if self.agreement and self.agreement.sites(UNDECIDED):
                deadline = monotonic() + settings.wait  # people decide, which takes as long as it takes
            if monotonic() > deadline:
                away = ", ".join(
                    name for i, name in enumerate(members.sites) if i not in self.nodes and i not in declined
                )
                reason = f"{len(clients)} of {need} clients were online after {settings.wait:g} s; offline: {away}"
                if declined:
                    reason += f"; not taking part: {', '.join(members.sites[site] for site in declined)}"
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
        if self.agreement:
            self.agreement.ask(self.post, self.nodes)
            agreed = self.agreement.sites(AGREED)
            self.nodes = {site: node for site, node in self.nodes.items() if site in agreed}

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
