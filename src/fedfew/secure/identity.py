"""Who a site is to the other sites: long-term keys (ECDSA, P-256) that sign what it sends them through the server.

On a network the server tells a site whose keys these are, and the network's authority has signed each: a row of the
site's key and a signature under network, number and key. A site takes no key from the server's word.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from fedfew.core.errors import FedfewError

SIGNATURE, POINT, BY_AUTHORITY = 64, 33, 96
"""Bytes of a site's signature, of its public key, and of the authority's signature (P-384)."""
MEMBER = POINT + BY_AUTHORITY
_HASH, _AUTHORITY_HASH = ec.ECDSA(hashes.SHA256()), ec.ECDSA(hashes.SHA384())
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, eq=False)
class Identity:
    """Signs for the sites of this machine, and knows the keys of all."""

    key_of: Callable[[int], Key | None] = field(default=lambda site: None, repr=False)
    """The private key of a site on this machine; the server of a network has none, and verifies only."""
    network: str = ""
    authority: bytes = b""
    """The certificate of the network's authority. In a simulation there is none, and all keys are on this machine."""
    agreed: Callable[[int, bytes], bool] = lambda number, row: True
    """Whether a member is one of those that the site has agreed to."""
    sites: int = 0
    """In a trial, where a site may serve several clients: how many sites there are; 0: a client is a site."""
    members: Mapping[int, bytes] = field(default_factory=dict)

    def meet(self, members: Mapping[int, bytes]) -> "Identity":
        """This identity among these sites; E422 unless the authority has signed their keys."""
        if self.authority and not members:
            raise FedfewError("E422", "secure sum", "the sites' keys are missing")
        for number, row in members.items():
            if _member_key(self.authority, self.network, number, row) is None:
                raise FedfewError("E422", "secure sum", f"the network's authority has not signed the key of {number}")
            if not self.agreed(number, row):
                raise FedfewError("E422", "secure sum", f"site {number} is another one than in the plan")
        return replace(self, members=dict(members))

    def sign(self, site: int, message: bytes) -> bytes:
        key = self.key_of(self._site(site))
        if key is None:
            raise FedfewError("E422", "secure sum", f"this machine has no key of site {site}")
        return plain(key.sign(message, _HASH), SIGNATURE // 2)

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        """Whether the site is a member of the network and has signed this message."""
        number = self._site(site)
        if self.authority:
            public = _member_key(self.authority, self.network, number, self.members.get(number, b""))
        else:
            public = None if (key := self.key_of(number)) is None else key.public_key()
        return public is not None and _holds(public, message, signature, _HASH)

    def _site(self, client: int) -> int:
        return client % self.sites if self.sites else client


def simulated(seed: int) -> Identity:
    """A key for every client of a simulation, from the run's seed."""
    return Identity(partial(_simulated, seed))


@lru_cache(None)
def _simulated(seed: int, site: int) -> Key:
    secret = hashlib.sha256(b"fedfew simulated site\0%d %d" % (seed, site)).digest()
    return ec.derive_private_key(1 + int.from_bytes(secret[1:]), ec.SECP256R1())


def roster_hash(members: Mapping[int, bytes]) -> bytes:
    """Of all members with their keys."""
    return hashlib.sha256(b"".join(b"%d\0" % number + members[number] for number in sorted(members))).digest()


def member_text(network: str, number: int, point: bytes) -> bytes:
    """What the authority signs for a member."""
    return b"fedfew member\0" + network.encode() + b"\0%d\0" % number + point


@lru_cache(4096)
def _member_key(authority: bytes, network: str, number: int, row: bytes) -> ec.EllipticCurvePublicKey | None:
    """The key of a member; None unless the authority has signed it for this network and number."""
    signer, point = x509.load_pem_x509_certificate(authority).public_key() if authority else None, row[:POINT]
    if not isinstance(signer, ec.EllipticCurvePublicKey):
        return None
    if not _holds(signer, member_text(network, number, point), row[POINT:], _AUTHORITY_HASH):
        return None
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)


def plain(signature: bytes, half: int) -> bytes:
    """r and s, one after the other, so that all signatures have one length."""
    r, s = decode_dss_signature(signature)
    return r.to_bytes(half) + s.to_bytes(half)


def _holds(key: ec.EllipticCurvePublicKey, message: bytes, signature: bytes, how: ec.ECDSA) -> bool:
    half = (key.key_size + 7) // 8
    if len(signature) != 2 * half:
        return False
    try:
        r, s = int.from_bytes(signature[:half]), int.from_bytes(signature[half:])
        key.verify(encode_dss_signature(r, s), message, how)
    except InvalidSignature:
        return False
    return True
