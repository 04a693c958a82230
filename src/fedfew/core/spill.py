"""Spills a round's replies to disk: up to a limit they stay in memory, the rest goes to unnamed files.

The files are mapped, so that a spilled tensor is used like any other: the system reads its pages when they are needed
and drops them when memory is, so the server needs no more of it with more clients in a round.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import nbytes

IN_MEMORY = 64 << 20
"""Bytes of a round's replies that stay in memory: 2 clients with the paper's model, 800 with a small one."""
FILE = 64 << 20
"""Bytes of one file, if no tensor is larger."""
ALIGN = 64


class SpilledReply(Mapping[str, Tensor]):
    """A reply in files. A tensor is made when it is used: kept, it would break up the memory that others leave free."""

    def __init__(self, tensors: Mapping[str, Callable[[], Tensor]]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class ReplySpill:
    """Takes the replies of one round; a file goes with the last tensor in it."""

    def __init__(self, limit: int = IN_MEMORY) -> None:
        self._room = limit
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        self._end = 0
        self.stored = 0
        """Bytes in files."""

    def put(self, reply: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The reply as it is while there is room, then one whose tensors are in a file."""
        size = nbytes(reply)
        if size <= self._room:
            self._room -= size
            return reply
        try:
            tensors = ((name, tensor.detach().cpu().contiguous()) for name, tensor in reply.items())
            return SpilledReply({name: self._store(tensor) for name, tensor in tensors})
        except OSError as error:
            problem = f"the replies of a round do not fit: {error.strerror or error}"
            remedy = "Make room, or set TMPDIR to a larger disk"
            raise FedfewError("E305", tempfile.gettempdir(), problem, remedy) from error

    def _store(self, tensor: Tensor) -> Callable[[], Tensor]:
        size = nbytes({"": tensor})
        if not size:
            return partial(torch.empty, tensor.shape, dtype=tensor.dtype)
        if self._file is None or self._map is None or self._end + size > len(self._map):
            file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its last use
            file.truncate(max(size, FILE))
            self._file, self._map, self._end = file, mmap.mmap(file.fileno(), 0), 0
        start, left = self._end, tensor.view(-1).view(torch.uint8).numpy().data
        while left:  # a full disk is an error of the write; a write to the map would end the process
            left = left[os.pwrite(self._file.fileno(), left, start + size - len(left)) :]
        self._end = -(-(start + size) // ALIGN) * ALIGN
        self.stored += size
        return partial(_mapped, self._map, start, tensor.shape, tensor.dtype)


def _mapped(file: mmap.mmap, start: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(file, dtype=dtype, count=shape.numel(), offset=start).view(shape)
