"""Our head and parts as the content of a Flower message, and back; without torch or NumPy arrays.

A part travels as one Array of raw bytes, which Flower passes through untouched; small parts go together in one, because
every Array is a request of its own.
"""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedfew.deploy.flower.frames import Parts

_SMALL = 1 << 16
_LEVELS = 20
KIND = "fedfew.bytes"


def to_content(head: dict[str, Any], parts: Parts | Mapping[str, bytes | Array]) -> RecordDict:
    """A message's content. Parts that were made Arrays before can be shared by several messages."""
    ready = {name: part if isinstance(part, Array) else as_array(part) for name, part in parts.items()}
    small = {name: part for name, part in ready.items() if isinstance(part, bytes)}
    large = {name: part for name, part in ready.items() if isinstance(part, Array)}
    record: dict[str, Any] = {"json": json.dumps(head), "order": list(parts), "names": list(small)}
    record |= {"sizes": [len(part) for part in small.values()], "small": b"".join(small.values())}
    return RecordDict({"head": ConfigRecord(record), "parts": ArrayRecord(large)})


def as_array(part: bytes | memoryview) -> Array | bytes:
    """An Array, or plain bytes for what is small enough to travel with others."""
    data = bytes(part)
    return data if len(data) < _SMALL else Array(dtype="uint8", shape=(len(data),), stype=KIND, data=data)


def from_content(content: RecordDict, limit: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Head and parts of a message; raises ValueError for one that is not ours or holds more than ``limit`` bytes."""
    try:
        record: Any = content.config_records["head"]
        arrays = content.array_records["parts"]
        sizes, small, names = [int(n) for n in record["sizes"]], record["small"], [str(n) for n in record["names"]]
        found = {name: array.data for name, array in arrays.items()}
        size = len(small) + len(record["json"]) + sum(len(data) for data in found.values())
        if size > limit:
            raise ValueError(f"it holds {size:,} bytes, the limit is {limit:,}")
        place = 0
        for name, length in zip(names, sizes, strict=True):
            found[name] = small[place : place + length]
            place += length
        head = json.loads(record["json"])
        if not isinstance(head, dict) or not _is_flat(head, _LEVELS):
            raise ValueError("its head is no table, or one too deep")
        return head, {str(name): found[name] for name in record["order"]}
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a fedfew message ({type(error).__name__}: {error})") from None


def _is_flat(value: object, levels: int) -> bool:
    """Whether it has no more levels than that: what is nested too deeply cannot be written as JSON again."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inside)
