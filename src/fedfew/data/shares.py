"""Which client holds which image: one index array and offsets, however many clients there are."""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.streams import numpy_stream

Indices = NDArray[np.int64]

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

    def save(self, path: Path) -> None:
        """Write both arrays as NPZ; the file appears whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(self.to_bytes())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> "Partition":
        """Read what ``save`` wrote, and check that it is a partition."""
        try:
            with zipfile.ZipFile(path) as archive:
                # save() does not compress, so a member that claims more than the file holds is damaged or a bomb.
                if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                    raise ValueError("it claims more bytes than it has")
            with np.load(path, allow_pickle=False) as arrays:
                partition = Partition(arrays["order"], arrays["offsets"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise FedfewError("E202", str(path), f"the partition cannot be read ({error})") from error
        fault = _fault(partition.order, partition.offsets)
        if fault:
            raise FedfewError("E202", str(path), f"this is not a partition: {fault}")
        return partition


def _fault(order: Indices, offsets: Indices) -> str:
    if any(array.dtype != np.int64 or array.ndim != 1 for array in (order, offsets)):
        return "its arrays are not plain lists of int64"
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(order) or (np.diff(offsets) < 0).any():
        return "its offsets do not rise from 0 to the number of images"
    if len(order) and (order.min() < 0 or order.max() >= len(order) or (np.bincount(order) != 1).any()):
        return "an image is assigned twice or not at all"
    return ""


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
    fault = _fault(partition.order, partition.offsets)
    if fault or len(partition.order) != images:
        what = f"of {images} images it assigned {len(partition.order)}" + (f"; {fault}" if fault else "")
        raise FedfewError("E115", "partition.kind", what, "Every image must go to exactly one client")
    return partition


def starts(keys: Indices, groups: int) -> Indices:
    """Where each group begins once the keys are grouped; one entry more than groups."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(keys, minlength=groups))])


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
