"""The server's round of a secure sum: five exchanges with the clients, and one update that is the sum of all.

A client that drops out up to the third exchange is left out; one that drops out later has been counted. With fewer
clients than the threshold in any exchange the round has no sum and is skipped.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from fedfew.core.errors import UNUSED, FedfewError, Refusal
from fedfew.core.layout import Payload, Reply, Schema, nbytes
from fedfew.core.types import ClientUpdate, Fleet, Method, Missing, ServerSite, ServerState
from fedfew.runtime.exchange import Answers, Clients, received_bytes, select
from fedfew.runtime.screen import Measurement, Screen
from fedfew.runtime.wire import Wire
from fedfew.secure import messages
from fedfew.secure.content import Codec
from fedfew.secure.identity import SIGNATURE, Identity
from fedfew.secure.shamir import SHARE, join, weights
from fedfew.secure.site import (
    ENVELOPE,
    Advert,
    check_advert,
    committed,
    key_stream,
    listed,
    pair_mask,
    public_key,
    refusal,
)
from fedfew.secure.terms import Rules, Terms, fingerprint
from fedfew.transforms.discrete_gaussian import Words

T = TypeVar("T")


@dataclass(eq=False)
class Carrier:
    """Carries the messages of one round, and counts."""

    fleet: Fleet
    round: int
    missing: dict[int, Missing] = field(default_factory=dict)
    unused: list[Missing] = field(default_factory=list)
    down: int = 0
    up: int = 0
    wire: Counter[str] = field(default_factory=Counter)

    def exchange(self, sent: Mapping[int, Payload]) -> dict[int, Reply]:
        """The replies of the clients that answer in time."""
        self.down += sum(map(nbytes, sent.values()))
        replies: dict[int, Reply] = {}
        for answer in self.fleet.train(self.round, sent):
            if isinstance(answer, ClientUpdate) and answer.client in sent and answer.client not in replies:
                self.up += received_bytes(answer.reply)
                replies[answer.client] = dict(answer.reply)
            elif isinstance(answer, Missing) and answer.code in UNUSED:
                self.unused.append(answer)
            elif isinstance(answer, Missing):
                self.missing.setdefault(answer.client, answer)
        self.wire.update(self.fleet.traffic())
        for k in sent.keys() - replies.keys():
            self.missing.setdefault(k, Missing(k, Refusal.NO_ANSWER, "gave no answer"))
        return replies

    def valid(self, replies: Mapping[int, Reply], read: Callable[[int, Reply], T]) -> dict[int, T]:
        """The replies that can be read."""
        made = {}
        for k in sorted(replies):
            try:
                made[k] = read(k, replies[k])
            except FedfewError as fault:
                self.missing[k] = Missing(k, Refusal.SHAPE, fault.message)
        return made


@dataclass(frozen=True, eq=False)
class Sum:
    """The server's side of one sum."""

    post: Carrier
    codec: Codec
    terms: Terms
    identity: Identity
    payload: Payload

    @property
    def context(self) -> bytes:
        return self.terms.context(self.codec.rules)

    def collect(self, clients: Iterable[int]) -> tuple[Words, tuple[int, ...]]:
        """The sum, and the clients that are in it; E423 if too few stay."""
        offered = self.post.exchange(dict.fromkeys(clients, messages.offer(self.terms, self.identity.members)))
        adverts = self._enough(messages.KEYS, self.post.valid(offered, self._advert))
        rows = {k: b"".join(advert) for k, advert in adverts.items()}
        replies = self._ask(messages.SHARES, dict.fromkeys(adverts, rows))
        sent = self._enough(messages.SHARES, self.post.valid(replies, partial(_envelopes, adverts)))
        replies = self._ask(messages.MASKED, {k: {u: sealed[k] for u, sealed in sent.items()} for k in sent})
        arrived = self._enough(
            messages.MASKED, self._of_one_length(self.post.valid(replies, lambda k, reply: messages.read_words(reply)))
        )
        replies = self._ask(messages.AGREE, dict.fromkeys(arrived, dict.fromkeys(arrived, b"")))
        signatures = self.post.valid(replies, partial(self._signature, listed(self.context, adverts, arrived)))
        self._enough(messages.AGREE, signatures)
        replies = self._ask(messages.REVEAL, dict.fromkeys(signatures, signatures))
        revealed = self._enough(
            messages.REVEAL, self.post.valid(replies, lambda k, reply: messages.read_table(reply, SHARE))
        )
        total = unmask(self.context, self.threshold, adverts, frozenset(sent), arrived, revealed)
        return total, tuple(arrived)

    @property
    def threshold(self) -> int:
        return self.codec.rules.threshold(len(self.terms.sites))

    def _ask(self, step: int, rows: Mapping[int, Mapping[int, bytes]]) -> dict[int, Reply]:
        """One exchange: to each client some bytes of others; what it trains from goes with the third."""
        more = self.payload if step == messages.MASKED else {}
        return self.post.exchange({k: more | messages.request(step, self.terms.nonce, rows[k]) for k in rows})

    def _enough(self, step: int, answers: dict[int, T]) -> dict[int, T]:
        if len(answers) < self.threshold:
            asked = len(self.terms.sites)
            why = f"{len(answers)} of {asked} clients answered exchange {step} of 5; {self.threshold} must"
            raise FedfewError("E423", "secure sum", why)
        return answers

    def _advert(self, k: int, reply: Reply) -> Advert:
        advert = messages.read_advert(messages.read_bytes(reply, messages.ROWS, messages.ADVERT))
        check_advert(self.context, k, advert, self.identity)
        return advert

    def _signature(self, message: bytes, k: int, reply: Reply) -> bytes:
        signature = messages.read_bytes(reply, messages.ROWS, SIGNATURE)
        if not self.identity.verified(k, message, signature):
            raise refusal("its signature is not valid")
        return signature

    def _of_one_length(self, masked: dict[int, Words]) -> dict[int, Words]:
        """Masked values that can be added: as long as most are."""
        lengths = Counter(len(values) for values in masked.values() if self.codec.fits(len(values)))
        usual = lengths.most_common(1)[0][0] if lengths else 0
        odd = {k: f"{len(values)} numbers, not {usual}" for k, values in masked.items() if len(values) != usual}
        self.post.missing |= {k: Missing(k, Refusal.SHAPE, reason) for k, reason in odd.items()}
        return {k: values for k, values in masked.items() if k not in odd}


def _envelopes(holders: Collection[int], k: int, reply: Reply) -> dict[int, bytes]:
    envelopes = messages.read_table(reply, ENVELOPE)
    if envelopes.keys() != set(holders):
        raise refusal("its envelopes are not one for each client")
    return envelopes


def unmask(
    context: bytes,
    threshold: int,
    adverts: Mapping[int, Advert],
    sharing: frozenset[int],
    arrived: Mapping[int, Words],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """Σ of the values of the sites that arrived, from shares that at least ``threshold`` of them have revealed.

    A site that dropped out after sharing its keys (in ``sharing``, not in ``arrived``) left the masks that it has in
    common with others in the sum: its mask key is put together and they are subtracted. E423 if that is not possible.
    """
    count = len(next(iter(arrived.values())))
    total = np.zeros(count, np.uint64)
    for values in arrived.values():
        total += values
    for site in sorted(sharing):
        if site in arrived:
            seed = _secret(site, threshold, revealed, committed, adverts[site].seed)
            total -= key_stream(seed, count)
            continue
        key = _secret(site, threshold, revealed, public_key, adverts[site].mask)
        for other in arrived:
            mask = pair_mask(key, adverts[other].mask, context, count)
            total = total - mask if other < site else total + mask
    return total


def _secret(
    site: int, threshold: int, revealed: Mapping[int, Mapping[int, bytes]], told: Callable[[bytes], bytes], known: bytes
) -> bytes:
    """The secret of a site of which ``told(secret)`` is known; wrong shares are passed over while others are left."""
    shares = {holder: int.from_bytes(parts[site]) for holder, parts in revealed.items() if site in parts}
    if len(shares) < threshold:
        raise FedfewError("E423", f"site {site}", f"{len(shares)} shares are left, {threshold} are needed")
    holders = sorted(shares)
    for first in range(len(holders)):
        secret = join(shares, weights(tuple((holders * 2)[first : first + threshold])))
        if secret < 2**256 and told(secret.to_bytes(32)) == known:
            return secret.to_bytes(32)
    raise FedfewError("E423", f"site {site}", "its shares do not fit together")


@dataclass(frozen=True, eq=False)
class SecureExchange:
    """Asks for a sum instead of single updates."""

    rules: Rules
    identity: Identity
    weigh: Callable[[ServerState, Iterable[int]], dict[int, float]]
    """The weights that the server gives the clients of a round."""

    def ask(self, clients: Clients, algorithm: Method, site: ServerSite, fleet: Fleet, state: ServerState) -> Answers:
        """One update: the mean of the clients' models, or the sum of their sums."""
        payloads, gone = select(clients, algorithm, fleet, state)
        cohort = list(payloads)
        if len({fingerprint(payload) for payload in payloads.values()}) > 1:
            raise FedfewError("E113", "privacy.sums", "the method sends its clients different payloads")
        payload = payloads[cohort[0]]
        post = Carrier(fleet, state.round, dict(gone))
        wire = Wire(algorithm, clients.transforms)
        codec = Codec(self.rules, wire.reply_schema(site.network.layout), len(cohort))
        codec.check()
        updates: list[ClientUpdate] = []
        arrived: tuple[int, ...] = ()
        try:
            identity = getattr(fleet, "identity", None) or self.identity  # a network knows its sites
            terms = Terms.of(state.round, self.weigh(state, cohort), payload, identity.members)
            present = [k for k in cohort if k not in gone]
            words, arrived = self.collect(Sum(post, codec, terms, identity, payload), present)
            screen = Screen.of(clients.gate, wire, site, state)
            updates = [self._update(clients, codec, words, payload, arrived, screen)]
        except FedfewError as fault:
            if fault.code not in (Refusal.HARMFUL, "E423"):
                raise
            code = Refusal.HARMFUL if fault.code == Refusal.HARMFUL else Refusal.TOO_FEW
            post.missing |= {
                k: Missing(k, code, fault.message) for k in cohort if k in arrived or k not in post.missing
            }
            updates, arrived = [], ()
        missing = [post.missing[k] for k in sorted(post.missing) if k not in arrived]
        return Answers(
            cohort, updates, missing, payloads, post.down, post.up, post.unused, dict(post.wire), site.classes,
            lengths=state.lengths, summed=arrived,
        )  # fmt: skip

    def collect(self, asked: Sum, clients: Iterable[int]) -> tuple[Words, tuple[int, ...]]:
        """The sum, and who is in it."""
        return asked.collect(clients)

    def _update(
        self, clients: Clients, codec: Codec, words: Words, payload: Payload, arrived: tuple[int, ...], screen: Screen
    ) -> ClientUpdate:
        """The sum as an update, under the first client's number; E421 if it cannot be one, or ruins the model."""
        reply, weight, images = codec.decode(words, payload)
        metrics = {"steps": 1.0 if weight > 0 else 0.0}
        if self.rules.noise:
            metrics["noise"] = codec.noise_of(len(arrived))
        update = ClientUpdate(arrived[0], reply, images, metrics)
        fault = clients.gate.check(update, payload, _of_sum(codec.schema, self.rules), max(images, 0))
        measured = [] if fault else [screen.measure(reply, payload)]
        none = [Measurement(dict.fromkeys(one.lengths, 0.0), 0.0) for one in measured]  # it is compared with no change
        judged = screen.judge(dict(enumerate(measured + none))).refused
        for refused in (fault, *judged.values()):
            if refused is not None:
                raise FedfewError(Refusal.HARMFUL, "secure sum", f"the sum of {len(arrived)} clients: {refused.reason}")
        return update


def _of_sum(schema: Schema, rules: Rules) -> Schema:
    """What is true of a sum: rules about one client are not, and noise breaks the bound of its images."""
    bound = 0.0 if rules.private else 1.0
    return {name: replace(one, rule=None, per_example=bound * one.per_example) for name, one in schema.items()}
