"""The head of a message: JSON text of bounded length, parsed once and strictly, and the codes of failures in it.

Standard library only.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from fedfew.core.errors import Refusal

SITE_LIMIT = 8 << 20
"""Most bytes of a head that a server sends: config, and an index of tensors for each client."""
LONGEST_NAME = 64
MEANINGS = {
    "E408": "its training failed; the site's log says why",
    "E409": "its warm process did not answer; the site's log says why",
    "E417.versions": "the site runs another version of fedfew or torch",
    "E417.privacy": "the site requires a smaller clip or more noise",
    "E417.code": "the site has not allowed code that the run uses",
    "E417.data": "the site's images do not fit the run",
    "E417.model": "the site has other weights for the model's backbone",
    "E417.images": "the site has too few images to take part",
    "E417.limits": "the run asks for more than the site allows",
    "E417.client": "the site does not serve this client",
    "E417.config": "the site cannot build this run",
    "E419": "the site refused the server's message",
    "E420": "the site's privacy budget is spent",
    "E422": "the site refused what no honest server asks in a secure sum; its log says what",
    "E424": "the site has not agreed to the run, or has paused",
}
"""Code → the server's text for it. A site sends codes, not text, so that none of its paths, names or data leak."""


class ContentError(ValueError):
    """A message that is not valid; ``code`` says why."""

    def __init__(self, code: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def head_limit(clients: int) -> int:
    """Most characters of a reply's head: metrics and index of each client, and a little for the rest."""
    return (1 << 16) + (1 << 14) * clients


def parse_head(text: object, most: int) -> dict[str, Any]:
    """The table in a head's text; ContentError for anything else."""
    if not isinstance(text, str):
        raise ContentError(Refusal.NAMES, "its head is not text")
    if len(text) > most:
        raise ContentError(Refusal.TOO_LARGE, f"its head has {len(text):,} characters, the limit is {most:,}")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise ContentError(Refusal.NAMES, "its head is not JSON") from None
    if not isinstance(head, dict):
        raise ContentError(Refusal.NAMES, "its head is not a table")
    return head


def plan_hash(head: Mapping[str, Any]) -> str:
    """A hash of what a run asks of a site: config, classes, samples and backbone. Server and site compute it alike."""
    return sha256(json.dumps([head["config"], head["about"]], sort_keys=True).encode()).hexdigest()


def meaning(code: object) -> ContentError:
    """The server's words for a site's code; unknown codes count as failed training."""
    known = code if isinstance(code, str) and code in MEANINGS else "E408"
    return ContentError(Refusal(known.partition(".")[0]), MEANINGS[known])
