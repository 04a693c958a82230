"""Turns a dataset into a federation: few labels at the server, held-out images, and the rest unlabeled at clients."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.settings import Doc, Natural
from fedfew.core.streams import numpy_stream
from fedfew.data.clients import ClientsData
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.partitions import Deal, make_partition
from fedfew.data.shares import Indices, Partition, ranks

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


@dataclass(frozen=True)
class Split:
    """How a dataset is split between server, held-out sets and clients; every draw is by class and follows the seed.

    Test and validation samples are drawn first, so they stay the same when the numbers of labels or of unlabeled
    samples change.
    """

    split: Annotated[
        Literal["standard", "paper"],
        Doc("standard: the official test set; paper: train and test images merged, 2,000 held out"),
    ] = "standard"
    seed: Annotated[Natural, Doc("seed of the split and of the partition; if it is not given, that of the run")] = 0
    validation: Annotated[
        Natural, Doc("number of labeled images held out for validation; of your own folders' images at most a quarter")
    ] = 1000
    validation_from: Annotated[
        Literal["test", "server"],
        Doc("your own folders of images: whether validation images are taken from test/ or server/"),
    ] = "test"
    test: Annotated[Natural, Doc("number of test images; 0: all that the split has")] = 0
    unlabeled: Annotated[Natural, Doc("number of images divided among the clients; 0: all that are left")] = 0
    open: Annotated[
        Natural, Doc("number of public unlabeled images at the server, which no client holds (for ds-fl)")
    ] = 0
    normalize: Annotated[
        Literal["unit", "standard"], Doc("unit: pixels divided by 255; standard: then scaled to mean 0 and deviation 1")
    ] = "unit"


def federate(
    dataset: Dataset,
    split: Split,
    *,
    labels: int,
    clients: int,
    kind: str | Deal = "dirichlet",
    options: Mapping[str, Any] | None = None,
) -> Federation:
    """Split a dataset and divide its unlabeled part among clients.

    A dataset with its own sites keeps them: ``clients``, ``kind`` and ``options`` then have no effect.
    """
    _check(dataset)
    if dataset.sites is None:
        federation = _of_dataset(dataset, split, labels, clients, kind, options)
    elif not dataset.sites.names:
        raise FedfewError("E206", f"dataset {dataset.name}", "there are no sites: clients/ has no folders")
    elif split.split != "standard" or split.unlabeled or split.open:
        message = "split, unlabeled and open do not apply to sites with their own images"
        raise FedfewError("E113", "dataset", message)
    else:
        federation = _of_sites(dataset, dataset.sites, split, labels)
    return federation.standardized() if split.normalize == "standard" else federation


def _of_dataset(
    dataset: Dataset, split: Split, labels: int, clients: int, kind: str | Deal, options: Mapping[str, Any] | None
) -> Federation:
    rng, asked = numpy_stream(split.seed, "split"), {"labels": labels, "validation": split.validation}
    asked |= {"unlabeled": split.unlabeled, "open": split.open}
    paper = split.split == "paper"
    pool = dataset.train.join(dataset.test) if paper else dataset.train
    test = (split.test or PAPER_TEST) if paper else split.test
    if not paper:
        _afford(len(dataset.test), test=test)
    _afford(len(pool), **(asked | {"test": test} if paper else asked))
    truth = pool.labels.numpy()
    rest = np.arange(len(truth))
    if paper:
        tested, rest = _draw(truth, rest, test, rng)
        held_out = _take(pool, tested)
    elif test:
        held_out = _take(dataset.test, _draw(dataset.test.labels.numpy(), np.arange(len(dataset.test)), test, rng)[0])
    else:
        held_out = dataset.test
    validation, rest = _draw(truth, rest, split.validation, rng)
    labeled, rest = _draw(truth, rest, labels, rng, balanced=True)
    public, rest = _draw(truth, rest, split.open, rng) if split.open else (rest[:0], rest)
    unlabeled = np.sort(_draw(truth, rest, split.unlabeled, rng)[0] if split.unlabeled else rest)
    users = None if dataset.users is None or paper else np.asarray(dataset.users)[unlabeled]
    return Federation(
        server=_take(pool, labeled),
        validation=_take(pool, validation),
        test=held_out,
        samples=pool.samples.take(torch.from_numpy(unlabeled)),
        truth=pool.labels[unlabeled],
        open=pool.samples.take(torch.from_numpy(public)),
        partition=make_partition(truth[unlabeled], clients, kind, split.seed, options, users),
        classes=dataset.classes,
    )


def _of_sites(dataset: Dataset, sites: SiteSamples, split: Split, labels: int) -> Federation:
    """Real sites keep their samples; of the labels in test/ (or server/) at most a quarter becomes validation."""
    rng = numpy_stream(split.seed, "split")
    truth, tested = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    rest, left = np.arange(len(truth)), np.arange(len(tested))
    if split.validation_from == "server":
        checked, rest = _held(dataset.train, min(split.validation, len(rest) // 4), rng)
        validation = _take(dataset.train, checked)
    else:
        checked, left = _held(dataset.test, min(split.validation, len(left) // 4), rng)
        validation = _take(dataset.test, checked)
    labeled = _draw(truth, rest, min(labels, len(rest)), rng, balanced=True)[0]
    if split.test:
        _afford(len(left), test=split.test)
        left = _draw(tested, left, split.test, rng)[0]
    return Federation(
        server=_take(dataset.train, labeled),
        validation=validation,
        test=_take(dataset.test, np.sort(left)),
        samples=sites.samples,
        truth=torch.full((len(sites.samples),), -1) if sites.truth is None else sites.truth,
        partition=Partition(np.arange(len(sites.samples)), sites.offsets),
        classes=dataset.classes,
        sites=sites.names,
    )


def _held(part: LabeledSet, count: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Samples to hold out, and the others: drawn by class, or in whole groups where there are some."""
    everything = np.arange(len(part))
    if part.groups is None:
        return _draw(part.labels.numpy(), everything, count, rng)
    names, members, sizes = np.unique(part.groups.numpy(), return_inverse=True, return_counts=True)
    order = rng.permutation(len(names))
    held = np.isin(members, order[sizes[order].cumsum() <= count])
    return everything[held], everything[~held]


def _check(dataset: Dataset) -> None:
    """E204 for a dataset, perhaps of the user's own, that cannot be used."""
    parts, sites, fault = {"train set": dataset.train, "test set": dataset.test}, dataset.sites, ""
    if dataset.users is not None and len(dataset.users) != len(dataset.train):
        fault = f"it names {len(dataset.users)} users for {len(dataset.train)} training images"
    if sites is not None and len(sites.offsets) != len(sites.names) + 1:
        fault = f"{len(sites.names)} sites need {len(sites.names) + 1} offsets, not {len(sites.offsets)}"
    if sites is not None:
        truth = torch.zeros(len(sites.samples), dtype=torch.int64) if sites.truth is None else sites.truth
        parts["sites"] = LabeledSet(sites.samples, truth.where(truth != -1, 0))  # −1: no class, or unknown
    for name, part in parts.items():
        if not fault and (reason := _fault(part, len(dataset.classes))):
            fault = f"its {name} cannot be used: {reason}"
    if fault:
        raise FedfewError("E204", f"dataset {dataset.name}", fault, "Correct the function that makes it")


def _fault(part: LabeledSet, classes: int) -> str:
    labels, count = part.labels, len(part.samples)
    if fault := part.samples.fault():
        return fault
    if labels.dtype != torch.int64 or labels.shape != (count,):
        return f"{count} samples need as many int64 labels, not {list(labels.shape)} {labels.dtype}"
    if count and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        return f"labels go from {int(labels.min())} to {int(labels.max())}, but there are {classes} classes"
    return ""


def _afford(images: int, **counts: int) -> None:
    if sum(counts.values()) <= images:
        return
    wanted = " + ".join(f"{count:,} {key}" for key, count in counts.items() if count)
    where = "labels" if "labels" in counts else "dataset.test"
    raise FedfewError("E109", where, f"{wanted} images are asked for, but the dataset has {images:,} to take them from")


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
