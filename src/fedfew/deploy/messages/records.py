"""A head and parts as the content of a Flower message, and back; without torch or NumPy arrays.

The head is JSON text. A part travels as one Array of raw bytes, which Flower passes through untouched; small parts go
together in the record of the head, because every Array costs a request. Reading trusts nothing: each name,
number and length is checked, and every byte counted, before anything is copied.
"""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedfew.deploy.messages.frames import Parts
from fedfew.deploy.messages.heads import LONGEST_NAME, ContentError

KIND = "fedfew.bytes"
SMALL = 1 << 16
"""Parts with fewer bytes travel with the head."""
SMALL_TOGETHER = 1 << 18
"""Most bytes of small parts that travel with the head; further ones are Arrays."""
MOST_PARTS = 1 << 15
_FIELDS = {"json", "names", "sizes", "small"}


def to_content(head: Mapping[str, Any], parts: Parts | Mapping[str, bytes | Array]) -> RecordDict:
    """A message's content. Parts that are Arrays already can be shared by several messages."""
    small, large, together = dict[str, bytes](), dict[str, Array](), 0
    for name, part in parts.items():
        ready = part if isinstance(part, Array) else as_array(part)
        if isinstance(ready, bytes) and together + len(ready) <= SMALL_TOGETHER:
            small[name] = ready
            together += len(ready)
        else:
            large[name] = ready if isinstance(ready, Array) else _array(ready)
    record: dict[str, Any] = {"json": json.dumps(head), "names": list(small)}
    record |= {"sizes": [len(part) for part in small.values()], "small": b"".join(small.values())}
    return RecordDict({"head": ConfigRecord(record), "parts": ArrayRecord(large)})


def as_array(part: bytes | memoryview) -> Array | bytes:
    """An Array, or plain bytes for a part small enough to travel with others."""
    data = bytes(part)
    return data if len(data) < SMALL else _array(data)


def _array(data: bytes) -> Array:
    return Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)


def from_content(content: RecordDict, limit: int, most_head: int) -> tuple[str, dict[str, bytes]]:
    """The head's text and the parts; ContentError for what is not ours or holds more than ``limit`` bytes of parts."""
    if set(content) != {"head", "parts"} or not isinstance(content["head"], ConfigRecord):
        raise ContentError("E401", "it is not a fedfew message")
    record: dict[str, Any] = dict(content["head"])
    arrays = content["parts"]
    if set(record) != _FIELDS or not isinstance(arrays, ArrayRecord):
        raise ContentError("E401", "it is not a fedfew message")
    text, names, sizes, small = (record[field] for field in ("json", "names", "sizes", "small"))
    if not isinstance(text, str) or not isinstance(small, bytes):
        raise ContentError("E401", "its head has fields of another type")
    if not _all_are(str, names) or not _all_are(int, sizes) or len(names) != len(sizes):
        raise ContentError("E401", "its index of small parts is invalid")
    large = {name: array.data for name, array in arrays.items()}
    every = [*names, *large]
    if len(every) > MOST_PARTS or len(set(every)) != len(every) or any(len(n) > LONGEST_NAME for n in every):
        raise ContentError("E401", "its parts have invalid names")
    if not all(isinstance(data, bytes) for data in large.values()):
        raise ContentError("E401", "its parts are not bytes")
    if len(text) > most_head:
        raise ContentError("E405", f"its head has {len(text):,} characters, the limit is {most_head:,}")
    if any(size < 0 for size in sizes) or sum(sizes) != len(small):
        raise ContentError("E401", "the sizes of its small parts do not add up")
    total = len(small) + sum(map(len, large.values()))
    if total > limit:
        raise ContentError("E405", f"it holds {total:,} bytes, the limit is {limit:,}")
    found, place = dict(large), 0
    for name, size in zip(names, sizes, strict=True):
        found[name] = small[place : place + size]
        place += size
    return text, found


def _all_are(kind: type, values: object) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
