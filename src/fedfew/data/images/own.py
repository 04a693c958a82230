"""The dataset ``folder``: your own images at the server and at real sites; faults that spoil a run are refused."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc
from fedfew.data.dataset import Dataset, SiteSamples, shown
from fedfew.data.images.decode import SIZE_CAP
from fedfew.data.images.folder_check import findings
from fedfew.data.images.folders import Contents, read_folder
from fedfew.data.samples import Images
from fedfew.data.shares import ranks

PathTo = Annotated[str, Doc("where the images are; relative to the config file")]
Size = Annotated[int, Ge(8), Le(SIZE_CAP), Doc("images are resized and cropped to size × size pixels")]
Channels = Annotated[Literal[1, 3], Doc("1: grey, 3: color")]
Flips = Annotated[bool, Doc("whether a mirrored image keeps its class (not so for letters or laterality)")]


def folder(
    *,
    path: PathTo = "",
    size: Size = 64,
    channels: Channels = 3,
    flips: Flips = True,
    allow_overlap: Annotated[bool, Doc("whether images may be both in server/ and in test/")] = False,
    fold: Annotated[
        str, Doc('cross-validation where there is no test/: "2/5" tests on the second fifth of server/')
    ] = "",
) -> Dataset:
    """Your own images: server/<class>/…, clients/<site>/…, test/<class>/…; the clients are the sites."""
    contents = read_folder(path, size, channels)
    faults = [f.fault for f in findings(contents, 1, allow_overlap=allow_overlap, sites=False) if f.serious]
    if faults:
        raise ConfigErrors(faults)
    classes, sites = contents.survey.groups["server"], contents.survey.groups["clients"]
    rows = contents.rows("clients")  # site by site, in the survey's order
    sizes = Counter(contents.files[i].group for i in rows)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([sizes[site] for site in sites], dtype=np.int64)])
    train, test = _labeled(contents, "server", classes, flips), _labeled(contents, "test", classes, flips)
    if fold:
        train, test = _folded(train, test, fold)
    return Dataset(
        name="folder",
        train=train,
        test=test,
        classes=tuple(map(shown, classes)),
        sites=SiteSamples(tuple(map(shown, sites)), Images(contents.images[rows], flips), offsets),
    )


folder.brings_sites = True  # type: ignore[attr-defined]  # such a config needs no partition


def _folded(train: LabeledSet, test: LabeledSet, fold: str) -> tuple[LabeledSet, LabeledSet]:
    """The labels without a fold, and the fold; the images of each class go to the folds in turn."""
    part, _, parts = fold.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts) and int(parts) > 1):
        raise FedfewError("E103", "dataset.fold", f"{fold!r} is not a fold", 'Write it as "1/5", the first of five')
    if len(test):
        raise FedfewError("E113", "dataset.fold", "there are test images, so no fold is needed", "Leave it empty")
    held = torch.from_numpy(ranks(train.labels.numpy()) % int(parts) == int(part) - 1)
    counts = torch.bincount(train.labels)
    if not torch.equal(torch.bincount(train.labels[~held], minlength=len(counts)).bool(), counts.bool()):
        message = f"a class has too few labels for {parts} folds"
        raise FedfewError("E113", "dataset.fold", message, "Label more images, or put some into test/<class>/")
    return train.take(~held), train.take(held)


def _labeled(contents: Contents, part: str, classes: Sequence[str], flips: bool) -> LabeledSet:
    rows = contents.rows(part)
    number = {name: c for c, name in enumerate(classes)}
    labels = [number[contents.files[i].group] for i in rows]
    return LabeledSet(Images(contents.images[rows], flips), torch.tensor(labels, dtype=torch.int64))
