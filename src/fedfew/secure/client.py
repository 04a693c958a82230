"""A client's part in the sums of a run: answers each step, trains at the third, and keeps its secrets to itself.

Sums of one round over two sets of sites, or with two sets of weights, differ by the parts of few, so without noise it
helps to open one a round.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.core.layout import Payload, Reply, Schema
from fedfew.core.types import Trained
from fedfew.secure import messages, site
from fedfew.secure.content import Codec
from fedfew.secure.identity import SIGNATURE, Identity
from fedfew.secure.site import Secrets, refusal
from fedfew.secure.terms import Rules, Terms, fingerprint

Kept = dict[str, Tensor]
"""What a client keeps between the steps of a sum: its secrets, and of each step what it was sent and its answer."""
Train = Callable[[Payload], tuple[Trained, int]]
_ASKED, _SENT, _ANSWER, _KEYS, _ROUND, _OPENED = "asked/", "sent/", "answer/", "keys", "round", "opened"


@dataclass(frozen=True, eq=False)
class SumClient:
    """Answers for the clients of this process."""

    rules: Rules
    identity: Identity
    schema: Schema
    """What a client's reply looks like before it becomes part of a sum."""

    def answer(self, round: int, client: int, payload: Payload, kept: Kept, train: Train) -> Reply:
        """The answer to a step; the stored one if the same message comes again. ``train``: the reply, and how many
        images it is from."""
        step, asked = _step(payload), _asked(round, payload)
        if not _is_repeated(kept, step, asked):
            reply = self._answer(step, round, client, payload, kept, train)
            kept[f"{_ASKED}{step}"] = messages.single(asked)[messages.ROWS]
            own = {name: tensor.clone() for name, tensor in payload.items() if name.startswith(messages.PREFIX)}
            kept |= _under(f"{_SENT}{step}/", own) | _under(f"{_ANSWER}{step}/", reply)
        return _part(kept, f"{_ANSWER}{step}/")

    def trains(self, round: int, payload: Payload, kept: Kept) -> bool:
        """Whether the answer takes training: to a new message of the third step, with what it trains from."""
        step = _step(payload)
        return step == messages.MASKED and not _is_repeated(kept, step, _asked(round, payload))

    def _answer(self, step: int, round: int, client: int, payload: Payload, kept: Kept, train: Train) -> Reply:
        if step == messages.KEYS:
            return self._begin(round, client, payload, kept)
        if _KEYS not in kept or int(kept[_ROUND]) != round:
            raise refusal("this site has not begun such a sum")
        terms, members = messages.read_offer(round, _part(kept, f"{_SENT}{messages.KEYS}/"))
        if messages.read_bytes(payload, messages.NONCE, 16) != terms.nonce:
            raise refusal("a message belongs to another sum")
        own, identity = self._secrets(client, terms, kept), self.identity.meet(members)
        if step == messages.SHARES:
            return messages.table(site.share(own, messages.read_adverts(payload), identity))
        if step == messages.MASKED:
            return self._masked(own, terms, payload, train)
        if step == messages.AGREE:
            arrived = messages.read_table(payload, 0)
            if _opened(kept, round) not in (b"", _mark(terms, arrived)) and not self.rules.noise:
                raise refusal("this round already has a sum, of other sites")
            return messages.single(site.agree(own, arrived, identity))
        revealed = site.reveal(own, messages.read_table(payload, SIGNATURE), identity)
        if not _opened(kept, round):
            row = torch.frombuffer(bytearray(round.to_bytes(8) + _mark(terms, own.signed)), dtype=torch.uint8)
            kept[_OPENED] = torch.cat([kept.get(_OPENED, row[:0]), row])
        return messages.table(revealed)

    def _begin(self, round: int, client: int, payload: Payload, kept: Kept) -> Reply:
        """Step 1: new keys in the place of those of any sum before."""
        terms, members = messages.read_offer(round, payload)
        own = Secrets.new(client, terms.context(self.rules), terms.check(self.rules), terms.sites)
        advert = site.advertise(own, self.identity.meet(members))
        opened = {_OPENED: kept[_OPENED]} if _OPENED in kept else {}
        kept.clear()
        kept |= opened
        kept[_KEYS] = messages.single(own.seal + own.mask + own.seed)[messages.ROWS]
        kept[_ROUND] = torch.tensor(round)
        return messages.single(b"".join(advert))

    def _masked(self, own: Secrets, terms: Terms, payload: Payload, train: Train) -> Reply:
        """Step 3: train from what all sites were promised, and mask the result."""
        envelopes = messages.read_table(payload, site.ENVELOPE)
        site.check_senders(own, envelopes)
        seen = {name: tensor for name, tensor in payload.items() if not name.startswith(messages.PREFIX)}
        if fingerprint(seen) != terms.payload:
            raise refusal("this site is sent another model than the terms say")
        trained, images = train(seen)
        codec = Codec(self.rules, self.schema, len(terms.sites))
        values = codec.encode(trained, seen, terms.weights[terms.sites.index(own.site)], images)
        return messages.words(site.masked(own, envelopes, values))

    def _secrets(self, client: int, terms: Terms, kept: Kept) -> Secrets:
        """The state of the sum, from what is kept; a step that has not come has left nothing."""
        keys = kept[_KEYS].numpy().tobytes()
        adverts, envelopes, arrived = (
            _part(kept, f"{_SENT}{step}/") for step in (messages.SHARES, messages.MASKED, messages.AGREE)
        )
        return Secrets(
            client, terms.context(self.rules), terms.check(self.rules), terms.sites, keys[:32], keys[32:64], keys[64:],
            messages.read_adverts(adverts) if adverts else {},
            messages.read_table(envelopes, site.ENVELOPE) if envelopes else {},
            tuple(messages.read_table(arrived, 0)) if arrived else (),
        )  # fmt: skip


def _step(payload: Payload) -> int:
    number = payload.get(messages.STEP)
    if number is None or number.numel() != 1 or int(number) not in range(messages.KEYS, messages.REVEAL + 1):
        raise refusal("a message is not a step of a sum; this site takes part in sums only")
    return int(number)


def _mark(terms: Terms, arrived: Collection[int]) -> bytes:
    """Of the sites of a sum and their weights: another weight for one shows its part just as its absence does."""
    told = [(site, weight) for site, weight in zip(terms.sites, terms.weights, strict=True) if site in arrived]
    return hashlib.sha256(str(sorted(told)).encode()).digest()


def _opened(kept: Kept, round: int) -> bytes:
    """The mark of the sites whose sum of this round the client helped to open; empty if there is none."""
    rows, number = kept[_OPENED].numpy().tobytes() if _OPENED in kept else b"", round.to_bytes(8)
    return next((rows[at + 8 : at + 40] for at in range(0, len(rows), 40) if rows[at : at + 8] == number), b"")


def _asked(round: int, payload: Payload) -> bytes:
    return fingerprint(payload | {_ROUND: torch.tensor(round)})


def _is_repeated(kept: Kept, step: int, asked: bytes) -> bool:
    before = kept.get(f"{_ASKED}{step}")
    return before is not None and before.numpy().tobytes() == asked


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Kept:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _part(kept: Kept, prefix: str) -> Kept:
    return {name.removeprefix(prefix): tensor for name, tensor in kept.items() if name.startswith(prefix)}
