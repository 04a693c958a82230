"""A client's part in the sums of a run: answers each step, trains at the third, and keeps its secrets to itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
"""What a client keeps between the steps of a sum: its secrets, what it was sent, and its answers."""
_ASKED, _OFFER, _KEYS = "asked", "offer/", "keys"
_ROUND = "round"


@dataclass(frozen=True, eq=False)
class SumClient:
    """Answers for the clients of this process."""

    rules: Rules
    identity: Identity
    schema: Schema
    """What a client's reply looks like before it becomes part of a sum."""

    def answer(
        self, round: int, client: int, payload: Payload, kept: Kept, train: Callable[[Payload], tuple[Trained, int]]
    ) -> Reply:
        """The answer to a step; the stored one if the same message comes again. ``train``: the reply, and how many
        images it is from."""
        step, asked = _step(payload), _asked(round, payload)
        if not _is_repeated(kept, step, asked):
            reply = self._begin(round, client, payload, kept) if step == messages.KEYS else self._go_on(
                step, round, client, payload, kept, train)  # fmt: skip
            kept[f"{_ASKED}/{step}"] = messages.single(asked)[messages.ROWS]
            kept |= {f"answer/{step}/{name}": tensor for name, tensor in reply.items()}
        prefix = f"answer/{step}/"
        return {name.removeprefix(prefix): tensor for name, tensor in kept.items() if name.startswith(prefix)}

    def trains(self, round: int, payload: Payload, kept: Kept) -> bool:
        """Whether the answer takes training: to a new message of the third step, with what it trains from."""
        step = _step(payload)
        return step == messages.MASKED and not _is_repeated(kept, step, _asked(round, payload))

    def _begin(self, round: int, client: int, payload: Payload, kept: Kept) -> Reply:
        """Step 1: new keys in the place of those of any sum before."""
        terms, members = messages.read_offer(round, payload)
        context, threshold = terms.context(self.rules), terms.check(self.rules)
        own, advert = site.start(client, context, threshold, terms.sites, self.identity.meet(members))
        kept.clear()
        kept |= {_OFFER + name: tensor.clone() for name, tensor in payload.items()}
        kept[_KEYS] = messages.single(own.seal + own.mask + own.seed)[messages.ROWS]
        kept[_ROUND] = torch.tensor(round)
        return messages.single(messages.advert_row(advert))

    def _go_on(
        self, step: int, round: int, client: int, payload: Payload, kept: Kept,
        train: Callable[[Payload], tuple[Trained, int]],
    ) -> Reply:  # fmt: skip
        if _KEYS not in kept or int(kept[_ROUND]) != round:
            raise refusal("this site has not begun such a sum")
        terms, members = messages.read_offer(round, {name.removeprefix(_OFFER): t for name, t in kept.items()})
        if messages.read_bytes(payload, messages.NONCE, 16) != terms.nonce:
            raise refusal("a message belongs to another sum")
        own, identity = self._secrets(client, terms, kept), self.identity.meet(members)
        if step == messages.SHARES:
            rows = messages.read_table(payload, messages.ADVERT)
            adverts = {k: messages.read_advert(row) for k, row in rows.items()}
            _, envelopes = site.share(own, adverts, identity)
            kept |= {f"adverts/{name}": tensor.clone() for name, tensor in messages.table(rows).items()}
            return messages.table(envelopes)
        if step == messages.MASKED:
            return self._masked(own, terms, payload, kept, train)
        if step == messages.AGREE:
            arrived = messages.read_table(payload, 0)
            signed, signature = site.agree(own, arrived, identity)
            kept |= {f"signed/{name}": t for name, t in messages.table(dict.fromkeys(signed.signed, b"")).items()}
            return messages.single(signature)
        return messages.table(site.reveal(own, messages.read_table(payload, SIGNATURE), identity))

    def _masked(
        self, own: Secrets, terms: Terms, payload: Payload, kept: Kept,
        train: Callable[[Payload], tuple[Trained, int]],
    ) -> Reply:  # fmt: skip
        """Step 3: train from what all sites were promised, and mask the result."""
        envelopes = messages.read_table(payload, site.ENVELOPE)
        site.check_senders(own, envelopes)
        seen = method_part(payload)
        if fingerprint(seen) != terms.payload:
            raise refusal("this site is sent another model than the terms say")
        trained, images = train(seen)
        codec = Codec(self.rules, self.schema, len(terms.sites))
        values = codec.encode(trained, seen, terms.weights[terms.sites.index(own.site)], images)
        _, sent = site.masked(own, envelopes, values)
        kept |= {f"envelopes/{name}": tensor.clone() for name, tensor in messages.table(envelopes).items()}
        return messages.words(sent)

    def _secrets(self, client: int, terms: Terms, kept: Kept) -> Secrets:
        """The state of the sum, from what is kept."""
        keys = kept[_KEYS].numpy().tobytes()
        own = Secrets(client, terms.context(self.rules), terms.check(self.rules), terms.sites,
                      keys[:32], keys[32:64], keys[64:])  # fmt: skip
        adverts, envelopes, signed = (_rows(kept, f"{part}/", width) for part, width in (
            ("adverts", messages.ADVERT), ("envelopes", site.ENVELOPE), ("signed", 0)))  # fmt: skip
        read = {k: messages.read_advert(row) for k, row in adverts.items()}
        return replace(own, adverts=read, envelopes=envelopes, signed=tuple(signed))


def method_part(payload: Payload) -> Payload:
    """What a message of a sum holds of the method's own payload: only the third step has any."""
    return {name: tensor for name, tensor in payload.items() if not name.startswith(messages.PREFIX)}


def _step(payload: Payload) -> int:
    number = payload.get(messages.STEP)
    if number is None or number.numel() != 1 or int(number) not in range(messages.KEYS, messages.REVEAL + 1):
        raise refusal("a message is not a step of a sum; this site takes part in sums only")
    return int(number)


def _asked(round: int, payload: Payload) -> bytes:
    return fingerprint(payload | {_ROUND: torch.tensor(round)})


def _is_repeated(kept: Kept, step: int, asked: bytes) -> bool:
    before = kept.get(f"{_ASKED}/{step}")
    return before is not None and before.numpy().tobytes() == asked


def _rows(kept: Kept, prefix: str, width: int) -> dict[int, bytes]:
    """A table that was kept; empty before its step."""
    part = {name.removeprefix(prefix): tensor for name, tensor in kept.items() if name.startswith(prefix)}
    return messages.read_table(part, width) if part else {}
