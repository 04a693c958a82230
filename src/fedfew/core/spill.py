"""Spills a round's replies to disk: up to a limit they stay in memory, the rest goes to an unnamed file.

A spilled reply is read when it is used, so the server's memory does not grow with the clients of a round.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector, nbytes

IN_MEMORY = 64 << 20
"""Bytes of a round's replies that stay in memory: 2 clients with the paper's model, 800 with a small one."""


@dataclass(frozen=True, eq=False)
class SpilledTensor:
    """A tensor in the spill file; each read returns a new tensor, which the caller may free at once."""

    spill: "ReplySpill"
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """The tensor, or entries ``start`` to ``stop`` of a vector."""
        if (start, stop) == (0, None):
            return self.spill.load(self.offset, self.shape, self.dtype)
        first, last, _ = slice(start, stop).indices(self.shape[0])
        return self.spill.load(self.offset + first * self.dtype.itemsize, (max(last - first, 0),), self.dtype)


class SpilledReply(Mapping[str, Tensor]):
    """A reply in the spill file, read entry by entry."""

    def __init__(self, tensors: Mapping[str, SpilledTensor]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class ReplySpill:
    """Takes the replies of one round; its file is deleted with the last reply that refers to it."""

    def __init__(self, limit: int = IN_MEMORY) -> None:
        self._room = limit
        self._end = 0
        self._file = -1

    @property
    def stored(self) -> int:
        """Bytes in the file."""
        return self._end

    def put(self, reply: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The reply as it is while there is room, then one that reads its tensors from the file."""
        size = nbytes(reply)
        if size <= self._room:
            self._room -= size
            return reply
        return SpilledReply({name: self._store(tensor) for name, tensor in reply.items()})

    def _store(self, tensor: Tensor) -> SpilledTensor:
        stored = SpilledTensor(self, self._end, tuple(tensor.shape), tensor.dtype)
        left = _bytes_of(tensor.detach().cpu().contiguous())
        try:
            if self._file < 0:
                with tempfile.TemporaryFile() as file:
                    self._file = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._file)
            while left:
                written = os.pwrite(self._file, left, self._end)
                self._end, left = self._end + written, left[written:]
        except OSError as error:
            problem = f"the replies of a round do not fit: {error.strerror or error}"
            raise FedfewError(
                "E305", tempfile.gettempdir(), problem, "Make room, or set TMPDIR to a larger disk"
            ) from error
        return stored

    def load(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A new tensor with the bytes stored at ``offset``."""
        tensor = torch.empty(shape, dtype=dtype)
        left = _bytes_of(tensor)
        while left:
            count = os.preadv(self._file, [left], offset)
            if not count:
                raise FedfewError("E305", tempfile.gettempdir(), "a round's reply cannot be read back")
            offset, left = offset + count, left[count:]
        return tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


class Readable(Protocol):
    """A vector that is not in memory."""

    def read(self, start: int = 0, stop: int | None = None) -> Vector: ...


class VectorField:
    """A field that is set to a vector or to a ``Readable``, and returns a vector."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: object, owner: type | None = None) -> Vector:
        if instance is None:
            raise AttributeError(self._name)  # tells the dataclass that there is no default
        stored: Vector | Readable = vars(instance)[self._name]
        return stored if isinstance(stored, Tensor) else stored.read()

    def __set__(self, instance: object, value: Vector | Readable) -> None:
        vars(instance)[self._name] = value
