"""Tensors shared between processes: an anonymous file that several processes map, freed when the last one ends.

It has no name in the file system, so nothing is left behind after kill -9, and tensors are shared without pickling.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

Index = dict[str, list[Any]]
"""Where each tensor is: name → [offset, shape, dtype]."""

_ALIGN = 64
_KINDS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _KINDS}


def shared_file() -> int:
    """The descriptor of a new unnamed file.

    It is plain memory where the system offers that: /dev/shm has 64 MB in many containers, and writing beyond that
    kills the process without a message.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedfew")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def index_bytes(index: Index) -> int:
    """How many bytes the tensors of an index have; raises ValueError for an index that describes none."""
    total = 0
    for entry in index.values():
        offset, shape, dtype = entry
        if dtype not in _DTYPES or any(not isinstance(d, int) or d < 0 for d in (offset, *shape)):
            raise ValueError(f"{entry} does not describe a tensor")
        total += prod(shape) * _DTYPES[dtype].itemsize
    return total


class Arena:
    """One mapped file; one process writes tensors into it, others read them by an index sent over a socket."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    def write(self, groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Index]:
        """Write named groups of tensors; a tensor in several groups is written once."""
        offsets: dict[tuple[Any, ...], int] = {}
        plan: list[tuple[int, Tensor]] = []
        index: dict[str, Index] = {}
        offset = 0
        for group, tensors in groups.items():
            index[group] = {}
            for name, tensor in tensors.items():
                key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
                if key not in offsets or not tensor.numel():
                    offsets[key] = offset
                    plan.append((offset, tensor))
                    offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
                index[group][name] = [offsets[key], list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        if offset > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._reach(offset)
        for start, tensor in plan:
            self._view(start, tuple(tensor.shape), tensor.dtype).copy_(tensor)
        return index

    def read(self, index: Index, *, copy: bool) -> dict[str, Tensor]:
        """The tensors of an index; without ``copy`` they share the file's memory and change when it does."""
        views = {}
        for name, (offset, shape, dtype) in index.items():
            self._reach(offset + index_bytes({name: [offset, shape, dtype]}))
            view = self._view(offset, tuple(shape), _DTYPES[dtype])
            views[name] = view.clone() if copy else view
        return views

    def _reach(self, size: int) -> None:
        """Map at least this much of the file; ValueError if it is shorter."""
        if self._map is not None and len(self._map) >= size:
            return
        length = os.fstat(self.descriptor).st_size
        if length < size:
            raise ValueError(f"the shared file has {length} bytes, {size} are needed")
        self._map = mmap.mmap(self.descriptor, length) if length else None

    def _view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if not prod(shape) or self._map is None:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=prod(shape), offset=offset).view(shape)

    def close(self) -> None:
        """Release the file; its memory is freed when no process maps it."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
