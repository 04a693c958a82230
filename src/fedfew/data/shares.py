"""Which client holds which samples, and the labels of which: one index array and offsets for any number of clients."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import ArrayLike, NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Count, Doc, Natural
from fedfew.core.streams import numpy_stream

Indices = NDArray[np.int64]

DRAW = 2
"""The number of the scheme by which virtual clients draw, part of their partition's hash."""
COMPARED_CLIENTS = 500
"""R compares pairs of clients; beyond this many, a fixed sample represents all."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Client k holds the images ``order[offsets[k]:offsets[k + 1]]``; every image is held by exactly one client."""

    order: Indices
    offsets: Indices

    @property
    def clients(self) -> int:
        """K, clients without images included."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """n_k of every client."""
        return np.diff(self.offsets)

    @property
    def hash(self) -> str:
        """SHA-256 over both arrays: equal exactly when every client holds the same images in the same order."""
        digest = hashlib.sha256(len(self.order).to_bytes(8, "little"))
        for array in (self.order, self.offsets):
            digest.update(np.ascontiguousarray(array, "<i8").data)
        return digest.hexdigest()

    def of(self, client: int) -> Indices:
        """The images of one client."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def histogram(self, labels: Indices, classes: int) -> Indices:
        """How many images of each class each client holds, K×C."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        cells = np.bincount(owner * classes + labels[self.order], minlength=self.clients * classes)
        return cells.reshape(self.clients, classes)

    def to_bytes(self) -> bytes:
        """Both arrays as NPZ; equal partitions give equal bytes."""
        buffer = io.BytesIO()
        np.savez(buffer, order=self.order, offsets=self.offsets)
        return buffer.getvalue()


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
    def sizes(self) -> Indices:
        """n_k of every client, without a number in memory for each."""
        return np.broadcast_to(np.int64(self.per_client), self.clients)

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


def from_owners(owner: Indices, clients: int) -> Partition:
    """The partition in which image i belongs to client ``owner[i]``."""
    return Partition(grouped(owner), starts(owner, clients))


def from_lists(shares: Sequence[ArrayLike], images: int, clients: int) -> Partition:
    """The partition from a user's function, which returned one list of indices for each client; checked."""
    try:
        parts = [np.asarray(share, np.int64).ravel() for share in shares]
        partition = Partition(np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise FedfewError("E115", "partition.kind", f"it returned no lists of whole numbers ({error})") from None
    if partition.clients != clients:
        raise FedfewError("E115", "partition.kind", f"it returned {partition.clients} lists for {clients} clients")
    if not np.array_equal(np.sort(partition.order), np.arange(images)):
        known = np.unique(partition.order[(partition.order >= 0) & (partition.order < images)])
        message = f"it assigned {len(partition.order)} indices, which name {len(known)} of {images} images"
        raise FedfewError("E115", "partition.kind", message, "Every image must go to exactly one client")
    return partition


def starts(keys: Indices, groups: int) -> Indices:
    """Where each group begins once the keys are grouped; one entry more than groups."""
    return np.append(0, np.cumsum(np.bincount(keys, minlength=groups)))


def grouped(keys: Indices) -> Indices:
    """The indices of the keys in key order, equal keys in their given order."""
    small = len(keys) == 0 or keys.max() < 2**16
    return np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")  # 16 bits: NumPy's radix sort


def ranks(keys: Indices) -> Indices:
    """How many equal keys come before each key."""
    order, rank = grouped(keys), np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys)) - starts(keys, 0)[keys[order]]
    return rank


def heterogeneity(histogram: Indices) -> float:
    """R: the mean pairwise total variation distance of the clients' class shares; 0 is IID, 1 is no class in common."""
    held = np.flatnonzero(histogram.sum(axis=1))
    if len(held) > COMPARED_CLIENTS:
        held = numpy_stream(0, "heterogeneity").choice(held, COMPARED_CLIENTS, replace=False)
    if len(held) < 2:
        return 0.0
    shares = histogram[held] / histogram[held].sum(axis=1, keepdims=True)
    distances = np.zeros((len(held), len(held)))
    for share in shares.T:  # class by class: K×K×C would be too much for many classes
        distances += np.abs(share[:, None] - share[None, :])
    return float(distances.sum() / 2 / (len(held) * (len(held) - 1)))


Known = Callable[[int, Indices], Indices]
"""Maps a client and the classes of its images to the positions of those whose labels it holds."""


@dataclass(frozen=True)
class ClientLabels:
    """A scenario of the simulation: some clients hold labels of a few of their own images (labels-at-client)."""

    each: Annotated[
        Natural,
        Doc("number of labels at each client that holds labels, spread over its classes; 0: no client holds any"),
    ] = 0
    share: Annotated[float, Gt(0), Le(1), Doc("share of the clients that hold labels, at least one client")] = 1.0
    batch: Annotated[Count, Doc("number of labeled images added to each batch of unlabeled ones")] = 10

    def known(self, clients: int, seed: int) -> Known | None:
        """Who holds which labels, drawn from the data's seed; None where no client holds any."""
        if not self.each:
            return None
        holders = numpy_stream(seed, "label-holders").permutation(clients)[: max(round(self.share * clients), 1)]
        chosen = frozenset(holders.tolist())

        def known(client: int, truth: Indices) -> Indices:
            if client not in chosen:
                return np.empty(0, np.int64)
            shuffled = numpy_stream(seed, "client-labels", client).permutation(len(truth))
            first = np.argsort(ranks(truth[shuffled]), kind="stable")[: self.each]
            return np.sort(shuffled[first])

        return known


NO_LABELS = ClientLabels()
"""The usual scenario: labels at the server only."""
