"""The keys of a network's sites, and whether a request is signed with one: known before its body is read.

Flower's SuperNodes sign the time of every request and send it with their public key in three headers. The SuperLink
checks them again, together with what the request says.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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
