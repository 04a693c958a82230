"""A head and arrays as the content of a Flower message, and back; without torch or NumPy.

The head is JSON text; an array is raw bytes, which Flower passes on untouched. Reading trusts nothing: every name and
length is checked before anything is used.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedfew.core.errors import Refusal
from fedfew.deploy.messages.heads import LONGEST_NAME, ContentError

KIND = "fedfew.bytes"
MOST_ARRAYS = 1 << 15


def to_content(head: str, arrays: Mapping[str, bytes | memoryview | Array]) -> RecordDict:
    """A message's content; an Array that several messages share is hashed and uploaded once."""
    ready = {name: array if isinstance(array, Array) else as_array(array) for name, array in arrays.items()}
    return RecordDict({"head": ConfigRecord({"json": head}), "arrays": ArrayRecord(ready)})


def as_array(content: bytes | memoryview) -> Array:
    """Raw bytes as Flower's Array."""
    return Array(dtype="uint8", shape=(len(content),), stype=KIND, data=bytes(content))


def from_content(content: RecordDict, limit: int) -> tuple[Any, dict[str, bytes]]:
    """The head, for `parse_head`, and the arrays; ContentError if it is not ours or has too many bytes of arrays."""
    head, record = content.get("head"), content.get("arrays")
    ours = set(content) == {"head", "arrays"} and isinstance(head, ConfigRecord) and set(head) == {"json"}
    if not ours or not isinstance(record, ArrayRecord):
        raise ContentError(Refusal.NAMES, "it is not a fedfew message")
    arrays = {name: array.data for name, array in record.items()}
    if len(arrays) > MOST_ARRAYS or any(len(name) > LONGEST_NAME for name in arrays):
        raise ContentError(Refusal.NAMES, "its arrays have invalid names")
    if not all(isinstance(data, bytes) for data in arrays.values()):
        raise ContentError(Refusal.NAMES, "its fields are of another type")
    total = sum(map(len, arrays.values()))
    if total > limit:
        raise ContentError(Refusal.TOO_LARGE, f"it holds {total:,} bytes, the limit is {limit:,}")
    return content["head"]["json"], arrays
