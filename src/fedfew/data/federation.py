"""Turns a dataset into a federation: few labels at the server, held-out images, and the rest unlabeled at clients."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.streams import numpy_stream
from fedfew.data.clients import ClientsData
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.partitions import Deal, make_partition
from fedfew.data.shares import Indices, Partition, ranks

SPLITS = ("standard", "paper")
NORMALIZATIONS = ("unit", "standard")
PAPER_TEST = 2_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Federation(ClientsData):
    """The data of a simulated run: the clients' and the server's."""

    server: LabeledSet
    open: Samples | None = None
    """Public unlabeled samples at the server."""
    sites: tuple[str, ...] = ()
    """The clients' names, where the dataset brings its own sites."""

    @property
    def sets(self) -> dict[str, Samples]:
        """All samples, by the name of their field."""
        public = {} if self.open is None else {"open": self.open}
        return {"server": self.server.samples} | super().sets | public

    def standardized(self) -> "Federation":
        """Networks see samples scaled to mean 0 and deviation 1 over those that training uses."""
        scaled = self.server.samples.standardizer(self.samples)
        return self.with_sets({name: scaled(samples) for name, samples in self.sets.items()})

    def fingerprint(self) -> str:
        """SHA-256 over all images and labels: a user's files may change before a run is resumed."""
        if self.origin:
            return self.origin.fingerprint
        seen = hashlib.sha256("\0".join(self.classes).encode())
        for part in (self.server, self.validation, self.test, LabeledSet(self.samples, self.truth)):
            data = part.samples.data
            seen.update(f"{tuple(data.shape)}".encode())
            seen.update(np.ascontiguousarray(data.numpy()).data)
            seen.update(np.ascontiguousarray(part.labels.numpy()).data)
        return seen.hexdigest()


def federate(
    dataset: Dataset,
    *,
    labels: int,
    clients: int,
    kind: str | Deal = "dirichlet",
    options: Mapping[str, Any] | None = None,
    split: str = "standard",
    seed: int = 0,
    validation: int = 0,
    validation_from: str = "test",
    test: int = 0,
    unlabeled: int = 0,
    open: int = 0,
    normalize: str = "unit",
) -> Federation:
    """Split a dataset and partition its unlabeled part among clients; every draw is stratified and follows ``seed``.

    ``split = "standard"`` keeps the official test set (``test`` > 0: that many of it); ``"paper"`` merges both sets and
    holds out ``test`` images (0: the paper's 2,000). ``unlabeled`` > 0 keeps only that many images for the clients.
    Test and validation images are drawn first, so they stay the same when ``labels`` or ``unlabeled`` change. ``open``
    images become the public set of the server and belong to no client.
    A dataset with its own sites keeps them: ``clients``, ``kind`` and ``options`` then have no effect.
    """
    _check(dataset, split, normalize, labels=labels, validation=validation, test=test, unlabeled=unlabeled, open=open)
    if dataset.sites is not None:
        if not dataset.sites.names:
            raise FedfewError("E206", f"dataset {dataset.name}", "there are no sites: clients/ has no folders")
        if split != "standard" or unlabeled or open:
            what = "split, unlabeled and open do not apply to sites with their own images"
            raise FedfewError("E113", "dataset", what)
        federation = _of_sites(dataset, dataset.sites, labels, seed, validation, validation_from, test)
        return federation.standardized() if normalize == "standard" else federation
    rng = numpy_stream(seed, "split")
    if split == "paper":
        pool, test = dataset.train.join(dataset.test), test or PAPER_TEST
        _afford(len(pool), labels=labels, validation=validation, test=test, unlabeled=unlabeled, open=open)
    else:
        pool = dataset.train
        _afford(len(dataset.test), test=test)
        _afford(len(pool), labels=labels, validation=validation, unlabeled=unlabeled, open=open)
    truth = pool.labels.numpy()
    rest = np.arange(len(truth))
    if split == "paper":
        tested, rest = _draw(truth, rest, test, rng)
        held = _take(pool, tested)
    elif test:
        held = _take(dataset.test, _draw(dataset.test.labels.numpy(), np.arange(len(dataset.test)), test, rng)[0])
    else:
        held = dataset.test
    checked, rest = _draw(truth, rest, validation, rng)
    labeled, rest = _draw(truth, rest, labels, rng, balanced=True)
    public, rest = _draw(truth, rest, open, rng) if open else (rest[:0], rest)
    given = np.sort(_draw(truth, rest, unlabeled, rng)[0] if unlabeled else rest)
    clients_share = _take(pool, given)
    federation = Federation(
        server=_take(pool, labeled),
        validation=_take(pool, checked),
        test=held,
        samples=clients_share.samples,
        truth=clients_share.labels,
        open=_take(pool, public).samples,
        partition=make_partition(truth[given], clients, kind, seed, options, users=_users(dataset, split, given)),
        classes=dataset.classes,
    )
    return federation.standardized() if normalize == "standard" else federation


def _of_sites(
    dataset: Dataset,
    sites: SiteSamples,
    labels: int,
    seed: int,
    validation: int,
    validation_from: str,
    test: int,
) -> Federation:
    """Real sites keep their images; of the labels in test/ (or server/) at most a quarter becomes validation."""
    rng = numpy_stream(seed, "split")
    truth, tested = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    rest, left = np.arange(len(truth)), np.arange(len(tested))
    if validation_from == "server":
        checked, rest = _draw(truth, rest, min(validation, len(rest) // 4), rng)
        held_out = _take(dataset.train, checked)
    else:
        checked, left = _draw(tested, left, min(validation, len(left) // 4), rng)
        held_out = _take(dataset.test, checked)
    labeled = _draw(truth, rest, min(labels, len(rest)), rng, balanced=True)[0]
    if test:
        _afford(len(left), test=test)
        left = _draw(tested, left, test, rng)[0]
    return Federation(
        server=_take(dataset.train, labeled),
        validation=held_out,
        test=_take(dataset.test, np.sort(left)),
        samples=sites.samples,
        truth=torch.full((len(sites.samples),), -1) if sites.truth is None else sites.truth,
        partition=Partition(np.arange(len(sites.samples)), sites.offsets),
        classes=dataset.classes,
        sites=sites.names,
    )


def _check(dataset: Dataset, split: str, normalize: str, **counts: int) -> None:
    for key, value, known in (("split", split, SPLITS), ("normalize", normalize, NORMALIZATIONS)):
        if value not in known:
            raise FedfewError("E103", f"dataset.{key}", f"{value!r} is none of {', '.join(known)}")
    for key, count in counts.items():
        if count < 0:
            raise FedfewError("E103", key if key == "labels" else f"dataset.{key}", f"{count} is below 0")
    if dataset.users is not None and len(dataset.users) != len(dataset.train):
        what = f"it names {len(dataset.users)} users for {len(dataset.train)} training images"
        raise FedfewError("E204", f"dataset {dataset.name}", what)
    if dataset.sites is not None and (fault := _site_fault(dataset.sites, len(dataset.classes))):
        raise FedfewError("E204", f"dataset {dataset.name}", f"its sites are unusable: {fault}")
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        if fault := _fault(part, len(dataset.classes)):
            raise FedfewError("E204", f"dataset {dataset.name}", f"its {name} set is unusable: {fault}")


def _users(dataset: Dataset, split: str, given: Indices) -> Indices | None:
    """The user of each client image; None where the official test set was merged in."""
    return None if dataset.users is None or split == "paper" else np.asarray(dataset.users)[given]


def _fault(part: LabeledSet, classes: int) -> str:
    if fault := part.samples.fault():
        return fault
    if part.labels.dtype != torch.int64 or part.labels.shape != (len(part.samples),):
        count = len(part.samples)
        return f"{count} samples need as many int64 labels, not {list(part.labels.shape)} {part.labels.dtype}"
    if len(part) and (int(part.labels.min()) < 0 or int(part.labels.max()) >= classes):
        return f"labels go from {int(part.labels.min())} to {int(part.labels.max())}, but there are {classes} classes"
    return ""


def _site_fault(sites: SiteSamples, classes: int) -> str:
    if len(sites.offsets) != len(sites.names) + 1:
        return f"{len(sites.names)} sites need {len(sites.names) + 1} offsets, not {len(sites.offsets)}"
    if sites.truth is None:
        return ""
    known = sites.truth.where(sites.truth != -1, 0)  # −1: no class, or unknown
    return _fault(LabeledSet(sites.samples, known), classes)


def _afford(images: int, **counts: int) -> None:
    if sum(counts.values()) <= images:
        return
    wanted = " + ".join(f"{count:,} {key}" for key, count in counts.items() if count)
    place = "labels" if "labels" in counts else "dataset.test"
    raise FedfewError("E109", place, f"{wanted} images are asked for, but the dataset has {images:,} to take them from")


def _draw(
    labels: Indices, pool: Indices, count: int, rng: np.random.Generator, *, balanced: bool = False
) -> tuple[Indices, Indices]:
    """Take ``count`` of the pool by class, in random order: as many of each (balanced), or in the pool's proportions.

    Returns what was taken and what is left. For one seed a smaller balanced draw is part of a larger one.
    """
    shuffled = rng.permutation(pool)
    classes = labels[shuffled]
    stock = np.bincount(classes)
    quota = _even(stock, count, rng) if balanced else _proportional(stock, count, rng)
    taken = ranks(classes) < quota[classes]
    return shuffled[taken], shuffled[~taken]


def _even(stock: Indices, count: int, rng: np.random.Generator) -> Indices:
    """The same number of each class; the remainder and what small classes lack go to others at random."""
    quota = np.zeros_like(stock)
    lot = rng.permutation(len(stock))  # always drawn, so that the draws after this one do not depend on the count
    while left := count - int(quota.sum()):
        open_ = lot[quota[lot] < stock[lot]]
        step = left // len(open_)
        if step == 0:
            quota[open_[:left]] += 1
        else:
            quota[open_] = np.minimum(stock[open_], quota[open_] + step)
    return quota


def _proportional(stock: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Shares of the classes as in the stock, rounded by largest remainder; ties are broken at random."""
    lot = rng.random(len(stock))
    quota, rest = np.divmod(count * stock, max(int(stock.sum()), 1))
    quota[np.lexsort((lot, -rest))[: count - int(quota.sum())]] += 1
    return quota


def _take(part: LabeledSet, indices: Indices) -> LabeledSet:
    return part.take(torch.from_numpy(indices))
