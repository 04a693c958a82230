"""The dataset type: labeled samples for training and testing, and optionally sites with their own samples.

A file that cannot be used is reported, and the others are still read. What every reader of a user's data needs is here:
labels as numbers, and a test set where there is none.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.streams import numpy_stream
from fedfew.data.shares import Indices, ranks

HELD_OUT = 6
"""Of data without a test part, one sample in this many goes to the test set."""


class Unreadable(Exception):  # noqa: N818 - it is not an error of the run
    """A file cannot be used; the text says why and follows the file's name."""


@dataclass(frozen=True)
class Problem:
    """A remark on one file: why it was skipped, or which part was not used."""

    path: str
    reason: str
    skipped: bool = True


def shown(path: str | Path) -> str:
    """A path as text that can be printed and written, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, eq=False)
class SiteSamples:
    """Unlabeled samples that belong to sites from the start: site k holds those from offsets[k] to offsets[k + 1]."""

    names: tuple[str, ...]
    samples: Samples
    offsets: Indices
    truth: Tensor | None = None
    """Their classes (int64), where a simulation knows them: for reports and bounds, not for training; −1: no class."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with labels; all parts are of the same kind."""

    name: str
    train: LabeledSet
    test: LabeledSet
    classes: tuple[str, ...]
    sites: SiteSamples | None = None
    """The clients' own samples; None where samples of ``train`` are assigned to simulated clients."""
    users: Indices | None = None
    """The user of each sample of ``train``, as a whole number: for partitions that keep a user's samples together."""
    problems: tuple[Problem, ...] = ()
    """Images that were skipped or used in part, for ``fedfew check``."""


def numbered(parts: Sequence[ArrayLike], names: Sequence[str], where: str) -> tuple[tuple[str, ...], list[Tensor]]:
    """The classes, and the labels of each part as int64: labels that are names are sorted, numbers are kept.

    ``names`` are those of numbered classes, if they are known.
    """
    try:
        arrays = [np.asarray(part) for part in parts]
    except ValueError:
        raise FedfewError("E204", where, "there is more than one label for some samples") from None
    arrays = [array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in arrays]
    kinds = {"i" if array.dtype.kind == "u" else array.dtype.kind for array in arrays if array.size}
    if any(array.ndim != 1 for array in arrays) or kinds not in ({"i"}, {"U"}):
        shapes = " and ".join(f"{array.dtype} {array.shape}" for array in arrays)
        raise FedfewError("E204", where, f"labels are {shapes}; one name or one whole number a sample is needed")
    together = np.concatenate([array for array in arrays if array.size])
    if kinds == {"U"}:
        classes, numbers = np.unique(together, return_inverse=True)
        names = classes.tolist()
    elif together.min() < 0:
        raise FedfewError("E204", where, "has labels below 0")
    else:
        count, numbers = int(together.max()) + 1, together
        if 0 < len(names) < count:
            raise FedfewError("E204", where, f"there are {len(names)} names, but labels go up to {count - 1}")
        if not names and count > len(together):
            raise FedfewError("E204", where, f"labels go up to {count - 1:,} for {len(together):,} samples")
        names = names or list(map(str, range(count)))
    split = torch.from_numpy(numbers.astype(np.int64)).split([array.size for array in arrays])
    return tuple(map(str, names)), list(split)


def held_out(labels: Indices) -> NDArray[np.bool_]:
    """Every sixth sample of each class at random, always the same ones, for data that has no test part."""
    order = numpy_stream(0, "held-out test").permutation(len(labels))
    tested = np.zeros(len(labels), bool)
    tested[order] = ranks(labels[order]) % HELD_OUT == HELD_OUT - 1
    return tested


def dataset_of(
    name: str,
    classes: Sequence[str],
    train: LabeledSet,
    test: LabeledSet | None = None,
    users: Sequence[str] = (),
    problems: Sequence[Problem] = (),
) -> Dataset:
    """A dataset that is divided among simulated clients; where there are no test samples, some are held out.

    ``users`` are the names of those to whom the samples of ``train`` belong, if that is known.
    """
    people = np.unique(users, return_inverse=True)[1].astype(np.int64) if users else None
    if test is None or not len(test):
        tested = held_out(train.labels.numpy())
        people = None if people is None else people[~tested]
        train, test = train.take(torch.from_numpy(~tested)), train.take(torch.from_numpy(tested))
    return Dataset(name, train, test, tuple(classes), users=people, problems=tuple(problems))


def folded(train: LabeledSet, test: LabeledSet, fold: str) -> tuple[LabeledSet, LabeledSet]:
    """The labels without a fold, and the fold; the images of each class, or their groups, go to the folds in turn."""
    part, _, parts = fold.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts) and int(parts) > 1):
        raise FedfewError("E103", "dataset.fold", f"{fold!r} is not a fold", 'Write it as "1/5", the first of five')
    if len(test):
        raise FedfewError("E113", "dataset.fold", "there are test images, so no fold is needed", "Leave it empty")
    order = ranks(train.labels.numpy())
    if train.groups is not None:  # the groups of each class go to the folds in turn, by their first image
        _, first, members = np.unique(train.groups.numpy(), return_index=True, return_inverse=True)
        order = ranks(train.labels.numpy()[first])[members]
    held = torch.from_numpy(order % int(parts) == int(part) - 1)
    counts = torch.bincount(train.labels)
    if not torch.equal(torch.bincount(train.labels[~held], minlength=len(counts)).bool(), counts.bool()):
        message = f"a class has too few labels for {parts} folds"
        raise FedfewError("E113", "dataset.fold", message, "Label more images, or put some into test/<class>/")
    return train.take(~held), train.take(held)
