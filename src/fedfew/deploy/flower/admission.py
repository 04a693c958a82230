"""Whom the front lets in: the keys of a network's sites, and places for connections.

Flower's SuperNodes sign the time of every request and send it with their public key in three headers, so the front
knows the site before it reads the body. The SuperLink checks them again, together with what the request says.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfew.deploy.certificates import as_flower_sends_it

_TOLERANCE = 360.0
"""Seconds that a signature may be old; the SuperLink is stricter."""


@dataclass(frozen=True)
class SiteKeys:
    """Public keys in the form in which Flower sends them."""

    known: Mapping[str, ec.EllipticCurvePublicKey]

    @classmethod
    def of(cls, folder: Path) -> "SiteKeys":
        """The keys of the network's folder."""
        texts = [as_flower_sends_it(path.read_bytes()) for path in sorted(folder.glob("*.pub"))]
        keys = {text: serialization.load_pem_public_key(text.encode()) for text in texts}
        return cls({text: key for text, key in keys.items() if isinstance(key, ec.EllipticCurvePublicKey)})

    def verified(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The key that signed a request; None if none of ours did, or too long ago."""
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


@dataclass(eq=False)
class Slots:
    """Who is connected. A connection without a key may be ended for a newer one, the oldest first: an honest one shows
    its key within milliseconds, so those that wait are the ones that hold places."""

    most: int = 4096
    strangers: int = 512
    """Connections without a key, in all."""
    of_address: int = 128
    """Connections without a key from one address."""
    of_key: int = 16
    _open: dict[int, Slot] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def take(self, address: str, abort: Callable[[], None]) -> Slot | None:
        """A place for a new connection; None if all are taken by sites with a key."""
        unknown = [slot for slot in self._open.values() if not slot.key]
        same = [slot for slot in unknown if slot.address == address]
        if len(same) >= self.of_address:
            self._end(same[0])
        elif len(unknown) >= min(self.strangers, self.most) or len(self._open) >= self.most:
            if not unknown:
                return None
            self._end(unknown[0])
        slot = Slot(address, next(self._numbers), abort)
        self._open[slot.number] = slot
        return slot

    def _end(self, slot: Slot) -> None:
        self.free(slot)
        slot.abort()

    def belongs(self, slot: Slot, key: str) -> bool:
        """Note whose connection it is; False if that site has too many already, or it was ended meanwhile."""
        if slot.number not in self._open:
            return False
        if slot.key != key and sum(other.key == key for other in self._open.values()) >= self.of_key:
            return False
        slot.key = key
        return True

    def free(self, slot: Slot) -> None:
        """The connection has ended."""
        self._open.pop(slot.number, None)
