"""Named groups of tensors as an index and raw bytes, and back; every claim of an index is checked before use."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedfew.core.errors import Refusal
from fedfew.deploy.messages.frames import LIMIT, Arrays
from fedfew.deploy.messages.heads import LONGEST_NAME, ContentError

Index = dict[str, list[Any]]
"""Name of a tensor → [array, shape, dtype]; a small tensor stands in the place of its array's name, in base64."""

SMALL, SMALL_TOGETHER = 2048, 6144
"""Most bytes of a tensor in an index, and of all in one group: an array of its own costs two requests."""
INLINE = "base64:"
MOST_TENSORS = 256
_MOST_DIMENSIONS = 8
_LONGEST = 2**40
"""Longest side of a tensor; a larger claim is refused before its sides are multiplied."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _FLOATS + _INTEGERS}


def pack(groups: Mapping[str, Mapping[str, Tensor]]) -> tuple[dict[str, Index], dict[str, memoryview]]:
    """The index of each group, and the arrays; a tensor in several groups becomes one array."""
    names: dict[tuple[int, tuple[int, ...], torch.dtype], str] = {}
    arrays: dict[str, memoryview] = {}
    index: dict[str, Index] = {group: {} for group in groups}
    for group, tensors in groups.items():
        room = SMALL_TOGETHER
        for name, tensor in tensors.items():
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
            size = tensor.numel() * tensor.element_size()
            if size <= min(SMALL, room):
                room -= size
                array = INLINE + b64encode(raw(tensor)).decode()
            else:
                array = names.setdefault(key, str(len(arrays)))
                if array not in arrays:
                    arrays[array] = raw(tensor)
            index[group][name] = [array, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
    return index, arrays


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; they share its memory if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def unpack(index: object, arrays: Arrays, limit: int = LIMIT) -> dict[str, Tensor]:
    """The tensors of an index, copied; ContentError where index and arrays disagree or take more than ``limit``."""
    if not isinstance(index, dict) or len(index) > MOST_TENSORS:
        raise ContentError(Refusal.SHAPE, f"the index is not a table of at most {MOST_TENSORS} tensors")
    claims = {name: _claim(name, entry, arrays) for name, entry in index.items()}
    total = sum(len(content) for _, _, content in claims.values())
    if total > limit:
        raise ContentError(Refusal.TOO_LARGE, f"the tensors have {total:,} bytes together, the limit is {limit:,}")
    return {name: _tensor(content, dtype).reshape(shape) for name, (dtype, shape, content) in claims.items()}


def _claim(name: object, entry: object, arrays: Arrays) -> tuple[torch.dtype, tuple[int, ...], bytes | memoryview]:
    """Type, shape and bytes of an entry of the index, if they fit together."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise ContentError(Refusal.SHAPE, "a tensor's name is not text, or too long")
    if not isinstance(entry, list) or len(entry) != 3:
        raise ContentError(Refusal.SHAPE, f"{name} has no entry of array, shape and type")
    array, shape, kind = entry
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ContentError(Refusal.SHAPE, f"{name} has a type that does not exist")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ContentError(Refusal.SHAPE, f"{name} has no shape")
    if not all(type(d) is int and 0 <= d < _LONGEST for d in shape):
        raise ContentError(Refusal.SHAPE, f"{name} has an impossible shape")
    dtype, content = DTYPES[kind], _content(name, array, arrays)
    if prod(shape) * dtype.itemsize != len(content):
        reason = f"{name} has {len(content)} bytes, {kind} of shape {tuple(shape)} has another number"
        raise ContentError(Refusal.SHAPE, reason)
    return dtype, tuple(shape), content


def _content(name: str, array: object, arrays: Arrays) -> bytes | memoryview:
    """The bytes that an entry names or contains."""
    if isinstance(array, str) and array.startswith(INLINE):
        try:
            return b64decode(array.removeprefix(INLINE), validate=True)
        except (binascii.Error, ValueError):
            raise ContentError(Refusal.SHAPE, f"{name} is not base64") from None
    if not isinstance(array, str) or array not in arrays:
        raise ContentError(Refusal.SHAPE, f"{name} names an array that does not exist")
    return arrays[array]


def _tensor(content: bytes | memoryview, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=dtype) if len(content) else torch.empty(0, dtype=dtype)
