"""Access control of the front: the keys of a network's sites, and slots for connections.

Flower's SuperNodes sign the time of every request and send it with their public key in three headers, so the front
knows the site before it reads the body. The SuperLink checks them again, together with what the request says.
"""

import base64
import binascii
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from time import monotonic

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_TOLERANCE = 360.0
"""Largest age of a signature in seconds; the SuperLink is stricter."""
_ADDRESSES = 65_536
"""Most addresses whose connections are counted at a time."""


def network_of(address: str) -> str:
    """What counts as one address: in IPv6 a single machine has the 2^64 addresses of its network."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


@dataclass(frozen=True)
class SiteKeys:
    """Public keys in the form in which Flower sends them."""

    known: Mapping[str, ec.EllipticCurvePublicKey]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "SiteKeys":
        """From their PEM texts."""
        keys = {text: serialization.load_pem_public_key(text.encode()) for text in texts}
        return cls({text: key for text, key in keys.items() if isinstance(key, ec.EllipticCurvePublicKey)})

    def verified(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The key that signed a request; None if it is unknown or the signature is too old."""
        try:
            text = base64.b64decode(headers[b"flwr-public-key"], validate=True).decode("ascii").strip()
            signature = base64.b64decode(headers[b"flwr-signature"], validate=True)
            stamp = headers[b"flwr-timestamp"]
            signed = datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.now(UTC) - signed).total_seconds()
            if text not in self.known or abs(age) > _TOLERANCE:
                return None
            self.known[text].verify(signature, stamp, ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, TypeError, OverflowError, binascii.Error, InvalidSignature):
            return None
        return text


@dataclass(eq=False)
class Slot:
    """One connection."""

    address: str
    number: int
    abort: Callable[[], None]
    key: str = ""
    """The site's key, once a request was signed with it."""


@dataclass
class Allowance:
    """A rate limit for new connections: ``burst`` at once, then ``rate`` a second."""

    burst: float
    rate: float
    left: float = 0.0
    at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether one more is allowed."""
        self.left = min(self.burst, self.left + (now - self.at) * self.rate) if self.at else self.burst
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass(eq=False)
class Slots:
    """The open connections, and a rate limit for new ones.

    A connection without a key may be closed in favour of a newer one: the oldest from the address with the most. Honest
    peers show their key within milliseconds, so those that wait are blocking slots. A TLS handshake costs the front
    milliseconds, so there is a limit per second for each address and for all addresses no site has connected from yet.
    """

    most: int = 4096
    strangers: int = 512
    """Most connections without a key, in total."""
    of_address: int = 128
    """Most connections without a key from one address."""
    of_key: int = 16
    by_address: tuple[float, float] = (64, 16)
    by_strangers: tuple[float, float] = (256, 32)
    """Burst and connections a second, for one address and for all addresses no site has connected from."""
    clock: Callable[[], float] = monotonic
    _open: dict[int, Slot] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)
    _allowed: dict[str, Allowance] = field(default_factory=dict)
    _unknown: Allowance | None = None
    _sites: dict[str, str] = field(default_factory=dict)
    """The address from which each key last connected."""

    def take(self, address: str, abort: Callable[[], None]) -> Slot | None:
        """A slot for a new connection; None if they come too fast, or sites with a key hold all slots."""
        address = network_of(address)
        if not self._may_come(address):
            return None
        unknown = [slot for slot in self._open.values() if not slot.key]
        same = [slot for slot in unknown if slot.address == address]
        if len(same) >= self.of_address:
            self._end(same[0])
        elif len(unknown) >= min(self.strangers, self.most) or len(self._open) >= self.most:
            if not unknown:
                return None
            crowd = Counter(slot.address for slot in unknown).most_common(1)[0][0]
            self._end(next(slot for slot in unknown if slot.address == crowd))
        slot = Slot(address, next(self._numbers), abort)
        self._open[slot.number] = slot
        return slot

    def _may_come(self, address: str) -> bool:
        now = self.clock()
        if len(self._allowed) >= _ADDRESSES:  # forget addresses not seen for a while
            self._allowed = {a: one for a, one in self._allowed.items() if now - one.at < one.burst / one.rate}
        own = self._allowed.setdefault(address, Allowance(*self.by_address))
        if not own.take(now):
            return False
        if address in self._sites.values():
            return True
        self._unknown = self._unknown or Allowance(*self.by_strangers)
        return self._unknown.take(now)

    def _end(self, slot: Slot) -> None:
        self.free(slot)
        slot.abort()

    def belongs(self, slot: Slot, key: str) -> bool:
        """Record whose connection it is; False if that site has too many already, or it was closed meanwhile."""
        if slot.number not in self._open:
            return False
        if slot.key != key and sum(other.key == key for other in self._open.values()) >= self.of_key:
            return False
        slot.key = key
        self._sites[key] = slot.address
        return True

    def free(self, slot: Slot) -> None:
        """The connection has ended."""
        self._open.pop(slot.number, None)
