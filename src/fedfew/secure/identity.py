"""Who a site is to the other sites: long-term keys that sign what it sends them through the server."""

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from fedfew.core.errors import FedfewError

SIGNATURE = 64
"""Bytes of a signature, of either kind."""
_HASH = ec.ECDSA(hashes.SHA256())


class Identity(Protocol):
    """Signs for the sites of this process, and knows the keys of all."""

    def sign(self, site: int, message: bytes) -> bytes: ...

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        """Whether the site is a member of the network and has signed this message."""
        ...


class SimulatedIdentities:
    """A key for every client of a simulation, from the run's seed: all clients are on this machine anyway."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def sign(self, site: int, message: bytes) -> bytes:
        return _simulated(self._seed, site)[0].sign(message)

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        try:
            _simulated(self._seed, site)[1].verify(signature, message)
        except InvalidSignature:
            return False
        return True


@cache
def _simulated(seed: int, site: int) -> tuple[Ed25519PrivateKey, Ed25519PublicKey]:
    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"fedfew simulated site\0%d %d" % (seed, site)).digest())
    return key, key.public_key()


class NetworkIdentity:
    """A site of a network, with the key of its bundle and the members' public keys that came with it."""

    def __init__(self, members: Mapping[int, ec.EllipticCurvePublicKey], number: int = -1,
                 key: ec.EllipticCurvePrivateKey | None = None) -> None:  # fmt: skip
        """Without a ``key`` of its own, as at the server, it verifies only."""
        self._members, self._number, self._key = dict(members), number, key

    def sign(self, site: int, message: bytes) -> bytes:
        if self._key is None or site != self._number:
            raise FedfewError("E422", "secure sum", f"this machine has no key of site {site}")
        r, s = decode_dss_signature(self._key.sign(message, _HASH))
        return r.to_bytes(32) + s.to_bytes(32)

    def verified(self, site: int, message: bytes, signature: bytes) -> bool:
        if site not in self._members or len(signature) != SIGNATURE:
            return False
        numbers = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
        try:
            self._members[site].verify(encode_dss_signature(*numbers), message, _HASH)
        except InvalidSignature:
            return False
        return True
