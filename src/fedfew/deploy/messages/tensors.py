"""Named groups of tensors as raw parts with an index, and back; every claim of an index is checked before use."""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedfew.deploy.messages.frames import LIMIT, Parts
from fedfew.deploy.messages.heads import LONGEST_NAME, ContentError

Index = dict[str, list[Any]]
"""Where each tensor lies: name → [part, shape, dtype]."""

_KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
MOST_TENSORS = 256
_MOST_DIMENSIONS = 8
_LONGEST = 2**40
"""Longest side of a tensor; a larger claim is refused before its sides are multiplied."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _KINDS + _WHOLE}


def pack(groups: Mapping[str, Mapping[str, Tensor]]) -> tuple[dict[str, Index], dict[str, memoryview]]:
    """One part per tensor; a tensor in several groups becomes one part."""
    places: dict[tuple[int, tuple[int, ...], torch.dtype], str] = {}
    parts: dict[str, memoryview] = {}
    index: dict[str, Index] = {}
    for group, tensors in groups.items():
        index[group] = {}
        for name, tensor in tensors.items():
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
            if key not in places or not tensor.numel():
                places[key] = str(len(parts))
                parts[places[key]] = raw(tensor)
            index[group][name] = [places[key], list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
    return index, parts


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; they share its memory if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def unpack(index: object, parts: Parts, limit: int = LIMIT) -> dict[str, Tensor]:
    """The tensors of an index, copied; ContentError where index and parts do not agree or take more than ``limit``."""
    if not isinstance(index, dict) or len(index) > MOST_TENSORS:
        raise ContentError("E402", f"the index is not a table of at most {MOST_TENSORS} tensors")
    plan, total = list[tuple[str, torch.dtype, tuple[int, ...], bytes | memoryview]](), 0
    for name, entry in index.items():
        dtype, sizes, content = _claim(name, entry, parts)
        total += len(content)
        plan.append((name, dtype, sizes, content))
    if total > limit:
        raise ContentError("E405", f"the tensors have {total:,} bytes together, the limit is {limit:,}")
    return {name: _tensor(content, dtype).reshape(sizes) for name, dtype, sizes, content in plan}


def _claim(name: object, entry: object, parts: Parts) -> tuple[torch.dtype, tuple[int, ...], bytes | memoryview]:
    """Type, shape and bytes of an entry of the index, if they fit its part."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise ContentError("E402", "a tensor's name is not text, or too long")
    if not isinstance(entry, list) or len(entry) != 3:
        raise ContentError("E402", f"{name} has no entry of part, shape and type")
    part, shape, kind = entry
    if not isinstance(part, str) or part not in parts or not isinstance(kind, str) or kind not in DTYPES:
        raise ContentError("E402", f"{name} names a part or a type that does not exist")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ContentError("E402", f"{name} has no shape")
    if not all(type(d) is int and 0 <= d < _LONGEST for d in shape):
        raise ContentError("E402", f"{name} has an impossible shape")
    dtype, content = DTYPES[kind], parts[part]
    if prod(shape) * dtype.itemsize != len(content):
        raise ContentError(
            "E402", f"{name} has {len(content)} bytes, {kind} of shape {tuple(shape)} has another number"
        )
    return dtype, tuple(shape), content


def _tensor(content: bytes | memoryview, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=dtype) if len(content) else torch.empty(0, dtype=dtype)
