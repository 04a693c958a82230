"""Virtual clients: their images follow from the seed and the client's number, so there may be any number of them."""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from fedfew.core.streams import numpy_stream
from fedfew.data.shares import Indices, grouped, starts

DRAW = 2
"""Version of the drawing scheme: a run of an earlier version cannot be resumed."""


@dataclass(frozen=True)
class Alike(Sequence[int]):
    """The same number for every client, without a list of them."""

    value: int
    length: int

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self.value] * len(range(*index.indices(self.length)))
        if not -self.length <= index < self.length:
            raise IndexError(f"client {index} of {self.length}")
        return self.value

    def __len__(self) -> int:
        return self.length

    def tolist(self) -> list[int]:
        """As a plain list."""
        return [self.value] * self.length


@dataclass(frozen=True, eq=False)
class VirtualPartition:
    """Client k holds ``per_client`` images drawn from all of them with its own class shares ~ Dir(μ).

    Of each class it has consecutive images of one shuffled order. Clients share images, so K may exceed their
    number; nothing is stored per client.
    """

    clients: int
    seed: int
    per_client: int
    mu: float
    labels: Indices = field(repr=False)

    @property
    def sizes(self) -> Alike:
        """n_k of every client."""
        return Alike(self.per_client, self.clients)

    @property
    def spec(self) -> dict[str, float]:
        """What distinguishes this partition from others over the same images."""
        return {"clients": self.clients, "seed": self.seed, "per_client": self.per_client, "mu": self.mu}

    @property
    def hash(self) -> str:
        """SHA-256 over the numbers and the classes that determine it."""
        digest = hashlib.sha256(json.dumps(self.spec | {"draw": DRAW}, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(self.labels, "<i8").data)
        return digest.hexdigest()

    @cached_property
    def _by_class(self) -> tuple[Indices, Indices]:
        """The images class by class, shuffled within each, and where each class begins."""
        shuffled = numpy_stream(self.seed, "virtual").permutation(len(self.labels))
        return shuffled[grouped(self.labels[shuffled])], starts(self.labels, 0)

    def of(self, client: int) -> Indices:
        """The images of one client, computed on access."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        rng = numpy_stream(self.seed, "virtual", client)
        order, offsets = self._by_class
        stock = np.diff(offsets)
        shares = rng.gamma(self.mu, size=len(stock)) * (stock > 0)
        shares = shares / shares.sum() if shares.sum() > 0 else stock / stock.sum()
        counts = np.minimum(rng.multinomial(self.per_client, shares), stock)
        while short := self.per_client - int(counts.sum()):  # a class that has run out leaves its share to the others
            room = stock - counts
            counts += np.minimum(rng.multinomial(short, room / room.sum()), room)
        # of each class, consecutive shuffled images from a random start, wrapping around: all different, in one step
        first = np.repeat((rng.random(len(stock)) * stock).astype(np.int64), counts)
        within = np.arange(self.per_client) - np.repeat(np.cumsum(counts) - counts, counts)
        images: Indices = order[np.repeat(offsets[:-1], counts) + (first + within) % np.repeat(stock, counts)]
        return images

    def histogram(self, labels: Indices, classes: int) -> Indices:
        """How many images of each class each client holds, K×C; computed client by client."""
        return np.stack([np.bincount(labels[self.of(k)], minlength=classes) for k in range(self.clients)])

    def to_bytes(self) -> bytes:
        """The numbers that determine it, as NPZ."""
        buffer = io.BytesIO()
        np.savez(buffer, clients=self.clients, seed=self.seed, per_client=self.per_client, mu=self.mu)
        return buffer.getvalue()
