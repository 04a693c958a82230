"""A site's part in a secure sum (K. Bonawitz et al.: Practical Secure Aggregation. CCS 2017, against active servers).

    1  keys     two new X25519 keys and a commitment to the seed b, signed with the site's identity
    2  shares   the mask key and the seed b, shared by Shamir's scheme and sealed for each site
    3  masked   x + PRG(b) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)   mod 2⁶⁴
    4  agree    a signature under the list of sites whose masked values have arrived
    5  reveal   for each site of that list its share of b, for each other one its share of the mask key; never both

Each step answers once; ``client.py`` keeps what it was asked and its answer, which it repeats when the same message
comes again. A site goes on
only while at least ``threshold`` of the sites named in the sum's terms take part. It signs one list, and reveals
nothing before ``threshold`` sites have signed the same one. Two lists, or two different views of who takes part, would
need two sets of ``threshold`` sites without an honest one in common: with 2 · threshold > sites + dishonest sites there
are none. What is sealed has a key of its own (new keys, direction and terms go into it), so nonces may be zero.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedfew.core.errors import FedfewError
from fedfew.secure.identity import Identity
from fedfew.secure.shamir import SHARE, split
from fedfew.transforms.discrete_gaussian import Words

ENVELOPE = 2 * SHARE + 16
"""Bytes of a sealed pair of shares."""


class Advert(NamedTuple):
    """A site's public keys for one sum and the commitment to its seed, signed."""

    seal: bytes
    mask: bytes
    seed: bytes
    signature: bytes


@dataclass(frozen=True)
class Secrets:
    """What a site keeps between the steps of one sum. It never leaves the site."""

    site: int
    context: bytes
    """A hash of the sum's terms: part of every signature and key, so nothing fits into another sum."""
    threshold: int
    sites: tuple[int, ...]
    """Those that may take part."""
    seal: bytes = field(repr=False)
    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    adverts: Mapping[int, Advert] = field(default_factory=dict)
    envelopes: Mapping[int, bytes] = field(default_factory=dict)
    signed: tuple[int, ...] = ()
    """The one list that the site has signed."""

    @staticmethod
    def new(site: int, context: bytes, threshold: int, sites: Collection[int]) -> "Secrets":
        seal, mask, seed = (secrets.token_bytes(32) for _ in range(3))
        return Secrets(site, context, threshold, tuple(sorted(sites)), seal, mask, seed)


def advertise(own: Secrets, identity: Identity) -> Advert:
    """Step 1: new keys."""
    _enough(own, own.sites)
    keys = public_key(own.seal), public_key(own.mask), committed(own.seed)
    return Advert(*keys, identity.sign(own.site, _advertised(own.context, own.site, *keys)))


def share(own: Secrets, adverts: Mapping[int, Advert], identity: Identity) -> dict[int, bytes]:
    """Step 2: a sealed envelope for every site, this one too, with its shares of the mask key and of the seed."""
    _once(own.adverts)
    _enough(own, adverts)
    if not adverts.keys() <= set(own.sites):
        raise refusal("a site takes part that the terms do not name")
    mine = adverts[own.site]
    if (mine.seal, mine.mask) != (public_key(own.seal), public_key(own.mask)):
        raise refusal("another key is given in this site's name")
    if len({key for advert in adverts.values() for key in (advert.seal, advert.mask)}) != 2 * len(adverts):
        raise refusal("two sites have the same key")
    for site, advert in adverts.items():
        check_advert(own.context, site, advert, identity)
    holders = sorted(adverts)
    masks = split(int.from_bytes(own.mask), own.threshold, holders)
    seeds = split(int.from_bytes(own.seed), own.threshold, holders)
    envelopes = {}
    for site in holders:
        content = masks[site].to_bytes(SHARE) + seeds[site].to_bytes(SHARE)
        cipher = _cipher(own, adverts[site].seal, own.site, site)
        envelopes[site] = cipher.encrypt(bytes(12), content, own.context)
    return envelopes


def masked(own: Secrets, envelopes: Mapping[int, bytes], values: Words) -> Words:
    """Step 3: the values under masks that cancel in the sum; the envelopes' senders take part."""
    check_senders(own, envelopes)
    total = values + key_stream(own.seed, len(values))
    for site in envelopes:
        if site != own.site:
            mask = pair_mask(own.mask, own.adverts[site].mask, own.context, len(values))
            total = total + mask if site > own.site else total - mask
    return total


def check_senders(own: Secrets, envelopes: Collection[int]) -> None:
    """E422 unless step 3 can be taken with these sites: also called before the training, which takes long."""
    _once(own.envelopes)
    _enough(own, envelopes)
    if not set(envelopes) <= own.adverts.keys():
        raise refusal("an envelope comes from a site without keys")


def agree(own: Secrets, arrived: Collection[int], identity: Identity) -> bytes:
    """Step 4: sign the list of sites whose masked values have arrived; one list only."""
    _once(own.signed)
    _enough(own, arrived)
    if not set(arrived) <= own.envelopes.keys():
        raise refusal("a site is said to have arrived that has not taken part")
    return identity.sign(own.site, listed(own.context, own.adverts, arrived))


def reveal(own: Secrets, signatures: Mapping[int, bytes], identity: Identity) -> dict[int, bytes]:
    """Step 5: shares of the seeds of sites that arrived, and of the mask keys of those that did not."""
    if not own.signed or not signatures.keys() <= set(own.signed):
        raise refusal("a signature comes from a site outside the list")
    _enough(own, {*signatures, own.site})
    for site, signature in signatures.items():
        if not identity.verified(site, listed(own.context, own.adverts, own.signed), signature):
            raise refusal(f"site {site} has not signed this list")
    revealed = {}
    for site, envelope in own.envelopes.items():
        try:
            cipher = _cipher(own, own.adverts[site].seal, site, own.site)
            content = cipher.decrypt(bytes(12), envelope, own.context)
        except InvalidTag:
            continue  # this site's shares are lost; those of the others may be enough
        revealed[site] = content[SHARE:] if site in own.signed else content[:SHARE]
    return revealed


def refusal(reason: str) -> FedfewError:
    """E422: no honest server sends this, and the site answers nothing."""
    return FedfewError("E422", "secure sum", reason)


def check_advert(context: bytes, site: int, advert: Advert, identity: Identity) -> None:
    """E422 unless the site itself has signed these keys for this sum."""
    message = _advertised(context, site, advert.seal, advert.mask, advert.seed)
    if not identity.verified(site, message, advert.signature):
        raise refusal(f"the keys of site {site} are not signed by it for this sum")


def listed(context: bytes, adverts: Mapping[int, Advert], sites: Collection[int]) -> bytes:
    """What a site signs about the sites that have arrived.

    The keys of this attempt are part of it: terms that are offered again must not make old signatures good again.
    """
    keys = b"".join(b"%d\0" % site + b"".join(adverts[site][:3]) for site in sorted(adverts))
    told = hashlib.sha256(keys).digest() + ",".join(map(str, sorted(sites))).encode()
    return b"fedfew secure sum, arrived\0" + context + told


def key_stream(key: bytes, count: int) -> Words:
    """PRG: ``count`` numbers of ChaCha20's key stream. A key is used once, so the nonce may be zero."""
    bits = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(bits, dtype="<u8").astype(np.uint64)


def pair_mask(private: bytes, public: bytes, context: bytes, count: int) -> Words:
    """The mask of two sites, from the private key of one and the public key of the other."""
    return key_stream(_agreed(private, public, context, b"mask"), count)


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def committed(seed: bytes) -> bytes:
    """A commitment to a random seed: wrong shares of it are noticed."""
    return hashlib.sha256(b"fedfew secure sum, seed\0" + seed).digest()


def _once(done: Any) -> None:
    """The key of an envelope, a mask and a signature serve once."""
    if done:
        raise refusal("a step is asked for again, with another content")


def _enough(own: Secrets, sites: Collection[int]) -> None:
    if own.site not in sites:
        raise refusal("this site is asked to serve a sum that it is not part of")
    if len(sites) < own.threshold:
        raise refusal(f"{len(sites)} sites take part; {own.threshold} must")


def _agreed(private: bytes, public: bytes, context: bytes, use: bytes) -> bytes:
    """HKDF of the X25519 secret of two keys: 32 bytes for one use in one sum."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise refusal("a key is not valid") from None
    return HKDF(hashes.SHA256(), 32, salt=context, info=use).derive(secret)


def _cipher(own: Secrets, public: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
    """The cipher of one envelope; its key serves for this direction alone."""
    use = b"envelope %d to %d" % (sender, receiver)
    return ChaCha20Poly1305(_agreed(own.seal, public, own.context, use))


def _advertised(context: bytes, site: int, seal: bytes, mask: bytes, seed: bytes) -> bytes:
    return b"fedfew secure sum, keys\0" + context + b"%d\0" % site + seal + mask + seed
