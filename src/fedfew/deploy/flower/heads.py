"""The head of a message: JSON text of bounded length that is parsed once, strictly. Standard library only."""

import json
from typing import Any

SITE_LIMIT = 8 << 20
"""Most bytes of a head that a server sends: config, and an index for each client."""
LONGEST_NAME = 64


class ContentError(ValueError):
    """A message that is not one of ours; ``code`` says in which way."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


def head_limit(clients: int) -> int:
    """Most characters of a reply's head: metrics and index of each client, and a little for the rest."""
    return (1 << 16) + (1 << 14) * clients


def parse_head(text: object, most: int) -> dict[str, Any]:
    """The table that a head's text means; ContentError for anything else."""
    if not isinstance(text, str):
        raise ContentError("E401", "its head is no text")
    if len(text) > most:
        raise ContentError("E405", f"its head has {len(text):,} characters, the limit is {most:,}")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise ContentError("E401", "its head is no JSON") from None
    if not isinstance(head, dict):
        raise ContentError("E401", "its head is no table")
    return head
