"""Named groups of tensors as raw parts with an index, and back; every claim of an index is checked before use."""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedfew.deploy.flower.frames import Parts

Index = dict[str, list[Any]]
"""Where each tensor lies: name → [part, shape, dtype]."""

_KINDS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_LONGEST = 2**40
"""Entries along one side of a tensor, beyond which a claim is not even multiplied out."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _KINDS + _WHOLE}


def pack(groups: Mapping[str, Mapping[str, Tensor]]) -> tuple[dict[str, Index], dict[str, memoryview]]:
    """One part a tensor; a tensor that stands in several groups becomes one part."""
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
    """The bytes of a tensor; shared with it where it lies in one piece."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def unpack(index: object, parts: Parts) -> dict[str, Tensor]:
    """The tensors of an index, copied; ValueError where index and parts do not agree."""
    if not isinstance(index, dict):
        raise ValueError("the index is no table")
    tensors = {}
    for name, entry in index.items():
        try:
            part, shape, kind = entry
            dtype, content = DTYPES[kind], parts[part]
            sizes = tuple(int(d) for d in shape)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ValueError(f"the index says {entry!r} of {name}") from None
        if not all(0 <= d < _LONGEST for d in sizes) or prod(sizes) * dtype.itemsize != len(content):
            raise ValueError(f"{name} has {len(content)} bytes, {kind} of shape {sizes} would have another number")
        flat = torch.frombuffer(bytearray(content), dtype=dtype) if len(content) else torch.empty(0, dtype=dtype)
        tensors[str(name)] = flat.reshape(sizes)
    return tensors
