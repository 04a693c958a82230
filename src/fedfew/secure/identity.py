"""Who a site is to the other sites: long-term keys that sign what it sends them through the server.

On a network the server tells a site whose keys these are, and the network's authority has signed each: a row of the
site's key and a signature under network, number and key. A site takes no key from the server's word.
"""

import hashlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedfew.core.errors import FedfewError

SIGNATURE = 64
"""Bytes of a signature, of either kind."""
POINT, BY_AUTHORITY = 33, 96
MEMBER = POINT + BY_AUTHORITY
"""Bytes of a member's key (P-256) and of the authority's signature under it (P-384)."""
_HASH, _AUTHORITY_HASH = ec.ECDSA(hashes.SHA256()), ec.ECDSA(hashes.SHA384())


class Identity(Protocol):
    """Signs for the sites of this process, and knows the keys of all."""

    @property
    def members(self) -> Mapping[int, bytes]:
        """The signed keys of the sites, for those who do not know them; none in a simulation."""
        ...

    def meet(self, members: Mapping[int, bytes]) -> "Identity":
        """This identity among these sites; E422 unless the authority has signed their keys."""
        ...

    def sign(self, site: int, message: bytes) -> bytes: ...

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        """Whether the site is a member of the network and has signed this message."""
        ...


class SimulatedIdentities:
    """A key for every client of a simulation, from the run's seed: all clients are on this machine anyway."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.members: Mapping[int, bytes] = {}

    def meet(self, members: Mapping[int, bytes]) -> "SimulatedIdentities":
        return self

    def sign(self, site: int, message: bytes) -> bytes:
        return _simulated(self._seed, site)[0].sign(message)

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        try:
            _simulated(self._seed, site)[1].verify(signature, message)
        except InvalidSignature:
            return False
        return True


@lru_cache(None)
def _simulated(seed: int, site: int) -> tuple[Ed25519PrivateKey, Ed25519PublicKey]:
    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"fedfew simulated site\0%d %d" % (seed, site)).digest())
    return key, key.public_key()


@dataclass(frozen=True, eq=False)
class NetworkIdentity:
    """A site of a network with its own key; or the server, which has none and verifies only."""

    network: str
    authority: bytes
    """Its certificate."""
    number: int = -1
    key: ec.EllipticCurvePrivateKey | None = field(default=None, repr=False)
    agreed: Mapping[int, str] | None = None
    """Fingerprints of the members that the site has agreed to, if it was asked."""
    sites: int = 0
    """In a trial, where a site may serve several clients: how many sites there are; 0: a client is a site."""
    members: Mapping[int, bytes] = field(default_factory=dict)

    def meet(self, members: Mapping[int, bytes]) -> "NetworkIdentity":
        if self.key and self.number not in members:
            raise FedfewError("E422", "secure sum", "the sites' keys come without this site's own")
        for number, row in members.items():
            if _member_key(self.authority, self.network, number, row) is None:
                raise FedfewError("E422", "secure sum", f"the network's authority has not signed the key of {number}")
            if self.agreed is not None and self.agreed.get(number) != fingerprint(row):
                raise FedfewError("E422", "secure sum", f"site {number} is another one than in the plan")
        return replace(self, members=dict(members))

    def sign(self, site: int, message: bytes) -> bytes:
        if self.key is None or self._site(site) != self.number:
            raise FedfewError("E422", "secure sum", f"this machine has no key of site {site}")
        return _plain(self.key.sign(message, _HASH), 32)

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        row = self.members.get(self._site(site), b"")
        key = _member_key(self.authority, self.network, self._site(site), row)
        return key is not None and _holds(key, message, signature, _HASH)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The members' keys as a plan shows them."""
        return {str(number): fingerprint(row) for number, row in self.members.items()}

    def is_row_of(self, number: int, row: bytes, key: ec.EllipticCurvePublicKey) -> bool:
        """Whether the authority has signed this key for this number."""
        return _member_key(self.authority, self.network, number, row) == key

    def _site(self, client: int) -> int:
        return client % self.sites if self.sites else client


def signed_member(
    authority: ec.EllipticCurvePrivateKey, network: str, number: int, key: ec.EllipticCurvePublicKey
) -> bytes:
    """The row of a member: its key, and the authority's signature."""
    point = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return point + _plain(authority.sign(_member(network, number, point), _AUTHORITY_HASH), BY_AUTHORITY // 2)


def fingerprint(row: bytes) -> str:
    """Of a member's key, as it was read out when the site joined."""
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), row[:POINT])
    content = b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    text = hashlib.sha256(content).hexdigest()[:32]
    return " ".join(text[i : i + 4] for i in range(0, 32, 4))


def roster_hash(members: Mapping[int, bytes]) -> bytes:
    """Of all members with their keys."""
    return hashlib.sha256(b"".join(b"%d\0" % number + members[number] for number in sorted(members))).digest()


@lru_cache(4096)
def _member_key(authority: bytes, network: str, number: int, row: bytes) -> ec.EllipticCurvePublicKey | None:
    """The key of a member; None unless the authority has signed it for this network and number."""
    signer, point = x509.load_pem_x509_certificate(authority).public_key(), row[:POINT]
    if not isinstance(signer, ec.EllipticCurvePublicKey):
        return None
    if not _holds(signer, _member(network, number, point), row[POINT:], _AUTHORITY_HASH):
        return None
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)


def _member(network: str, number: int, point: bytes) -> bytes:
    return b"fedfew member\0" + network.encode() + b"\0%d\0" % number + point


def _plain(signature: bytes, half: int) -> bytes:
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
