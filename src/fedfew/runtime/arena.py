"""Tensors shared between processes: an anonymous file that several processes map, freed when the last one ends.

There is no name in the file system, so nothing is left behind after kill -9, and tensors cross without being pickled.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Index = dict[str, list[Any]]
"""Where each tensor lies: name → [offset, shape, dtype]."""

_ALIGN = 64


def shared_file() -> int:
    """The descriptor of a new nameless file, in memory where the system offers that."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    descriptor, name = tempfile.mkstemp(prefix="fedfew-", dir=folder)
    Path(name).unlink()
    return descriptor


class Arena:
    """One mapped file; one process writes tensors into it, others read them by an index sent over a socket."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    def write(self, groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Index]:
        """Write named groups of tensors; a tensor that stands in several groups is written once."""
        places: dict[tuple[int, tuple[int, ...]], int] = {}
        plan: list[tuple[int, Tensor]] = []
        index: dict[str, Index] = {}
        offset = 0
        for group, tensors in groups.items():
            index[group] = {}
            for name, tensor in tensors.items():
                key = (tensor.data_ptr(), tuple(tensor.shape))
                if key not in places or not tensor.numel():
                    places[key] = offset
                    plan.append((offset, tensor))
                    offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
                index[group][name] = [places[key], list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
        self._grow(offset)
        for place, tensor in plan:
            self._view(place, tuple(tensor.shape), tensor.dtype).copy_(tensor)
        return index

    def read(self, index: Index, *, copy: bool) -> dict[str, Tensor]:
        """The tensors of an index; without ``copy`` they share the file's memory and change when it does."""
        views = {}
        for name, (offset, shape, dtype) in index.items():
            kind = getattr(torch, dtype)
            self._grow(offset + prod(shape) * kind.itemsize)
            view = self._view(offset, tuple(shape), kind)
            views[name] = view.clone() if copy else view
        return views

    def _grow(self, size: int) -> None:
        """Make the file at least this long, and map all of it."""
        if self._map is not None and len(self._map) >= size:
            return
        length = os.fstat(self.descriptor).st_size
        if length < size:
            length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.descriptor, length)
        self._map = mmap.mmap(self.descriptor, length) if length else None

    def _view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if not prod(shape) or self._map is None:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=prod(shape), offset=offset).view(shape)

    def close(self) -> None:
        """Give the file up; the memory is freed when no process maps it any more."""
        self._map = None
        os.close(self.descriptor)
