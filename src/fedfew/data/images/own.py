"""The dataset ``folder``: your own images at the server and at real sites; faults that spoil a run are refused."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc
from fedfew.core.types import Report
from fedfew.data.dataset import Dataset, SiteSamples, folded, shown
from fedfew.data.images.decode import SIZE_CAP
from fedfew.data.images.folders import LAYOUT, Folder, scan
from fedfew.data.images.subjects import numbers, with_subjects
from fedfew.data.samples import Images

PathTo = Annotated[str, Doc("where the images are; relative to the config file")]
Size = Annotated[int, Ge(8), Le(SIZE_CAP), Doc("images are resized and cropped to size × size pixels")]
Channels = Annotated[Literal[1, 3], Doc("1: grey, 3: color")]
Flips = Annotated[bool, Doc("whether a mirrored image keeps its class (not so for letters or laterality)")]
Fold = Annotated[str, Doc('cross-validation where there is no test/: "2/5" tests on the second fifth of server/')]
Group = Annotated[
    str,
    Doc(
        "pattern of file names, e.g. (\\w+)_, that tells which images share a patient or other group: these stay on one"
        " side of a split, and intervals are over groups; empty: the column group of labels.csv, or DICOM's PatientID"
    ),
]
Faults = Iterator[tuple[bool, FedfewError]]
"""Whether the fault stops a run, and the fault."""


def folder(
    *,
    path: PathTo = "",
    size: Size = 64,
    channels: Channels = 3,
    flips: Flips = True,
    allow_overlap: Annotated[bool, Doc("whether images may be both in server/ and in test/")] = False,
    fold: Fold = "",
    group: Group = "",
) -> Dataset:
    """Your own images: server/<class>/…, clients/<site>/…, test/<class>/…; the clients are the sites."""
    own = read(path=path, size=size, channels=channels, group=group)
    if errors := check_folder(own, 1, allow_overlap=allow_overlap, sites=False)[0]:
        raise ConfigErrors(errors)
    classes, sites, rows = own.groups["server"], own.groups["clients"], own.rows("clients")  # rows go site by site
    number, sizes = {name: c for c, name in enumerate(classes)}, Counter(own.files[i].group for i in rows)
    offsets = np.cumsum([0, *(sizes[site] for site in sites)], dtype=np.int64)
    known: dict[str, int] = {}
    train, test = (
        LabeledSet(
            Images(own.images[own.rows(part)], flips),
            torch.tensor([number[own.files[i].group] for i in own.rows(part)], dtype=torch.int64),
            numbers([own.files[i] for i in own.rows(part)], known),
        )
        for part in ("server", "test")
    )
    if fold:
        train, test = folded(train, test, fold)
    held = SiteSamples(tuple(map(shown, sites)), Images(own.images[rows], flips), offsets)
    return Dataset("folder", train, test, tuple(map(shown, classes)), held)


folder.brings_sites = True  # type: ignore[attr-defined]  # such a config needs no partition


def read(report: Report | None = None, *, path: str, size: int, channels: int, group: str, **_: Any) -> Folder:
    """The folder with its images and their groups, by the settings of the dataset."""
    return with_subjects(scan(path), group).read(size, channels, report)


def check_folder(
    own: Folder, batch: int, *, allow_overlap: bool = False, sites: bool = True, **_: Any
) -> tuple[list[FedfewError], list[FedfewError]]:
    """Everything that would spoil a run: the errors that stop it, and warnings.

    ``sites`` is False where the clients may be elsewhere.
    """
    overlap = [*_copies(own, allow_overlap), *_subjects(own, allow_overlap)]
    faults = [*_layout(own, sites), *_class_names(own), *overlap, *_small(own, batch)]
    return [fault for stops, fault in faults if stops], [fault for stops, fault in faults if not stops]


def _layout(own: Folder, sites: bool) -> Faults:
    root, classes = shown(own.root), own.groups["server"]
    if len(classes) < 2:
        message = f"server/ has {len(classes)} class folder{'' if len(classes) == 1 else 's'}, at least 2 are needed"
        yield True, FedfewError("E206", root, message, LAYOUT)
    filled = {own.files[i].group for i in own.rows("server")}
    for empty in (shown(own.root / "server" / name) for name in classes if name not in filled):
        yield True, FedfewError("E206", empty, "has no readable image", "Add one, or remove the folder")
    if not own.rows("test"):
        message = "test/ has no readable image, so accuracy can only come from cross-validation (`fedfew try`)"
        yield False, FedfewError("E206", root, message, "Put labeled images into test/<class>/")
    if own.unused:
        yield False, FedfewError("E206", root, f"these folders are not used: {_names(own.unused)}", LAYOUT)
    if sites and not own.rows("clients"):
        message = "no site has a readable image" if own.groups["clients"] else "clients/ has no site folders"
        yield True, FedfewError("E206", root, message, LAYOUT)


def _class_names(own: Folder) -> Faults:
    root, known, tested = shown(own.root), own.groups["server"], own.groups["test"]
    alike = defaultdict(set)
    for name in (*known, *tested):
        alike[name.casefold()].add(name)
    for names in alike.values():
        if len(names) > 1:
            message = f"the classes {' and '.join(map(shown, sorted(names)))} differ only by case"
            yield True, FedfewError("E208", root, message, "Give them one name, or two different ones")
    for name in tested:
        if name not in known and len(alike[name.casefold()]) == 1:
            message = f"the class {shown(name)} is in test/ but not in server/"
            yield True, FedfewError("E208", root, message, "Label some of its images at the server, or remove it")
    present = {own.files[i].group for i in own.rows("test")}
    if present and (missing := [name for name in known if name not in present]):
        message = f"test/ has no images of {_names(missing)}"
        yield False, FedfewError("E208", root, message, "The accuracy will say nothing about these classes")


def _copies(own: Folder, allow_overlap: bool) -> Faults:
    overlap = "" if allow_overlap else "Remove one of each, or set dataset.allow_overlap = true"
    for copies, code, text, remedy in (
        ([copy for copy in own.copies if copy.across], "E207", "both in server/ and in test/", overlap),
        ([copy for copy in own.copies if copy.in_two_classes], "E210", "in two classes", "Decide on one class"),
        ([copy for copy in own.copies if copy.kind == "copy"], "E210", "more than once", None),
    ):
        if copies:
            count = "1 image is" if len(copies) == 1 else f"{len(copies):,} images are"
            message = f"{count} {text}, e.g. {copies[0].of} and {copies[0].path}"
            yield code == "E207" and not allow_overlap, FedfewError(code, shown(own.root), message, remedy)


def _subjects(own: Folder, allow_overlap: bool) -> Faults:
    """Groups of images, such as patients, on both sides of a split."""
    by_part: dict[str, dict[str, str]] = {"server": {}, "test": {}, "clients": {}}
    for file in own.files:
        if file.subject:
            by_part[file.part].setdefault(file.subject, file.path)
    for part in ("server", "clients"):
        if both := [name for name in by_part["test"] if name in by_part[part]]:
            count = "1 group has images" if len(both) == 1 else f"{len(both):,} groups have images"
            example = f"e.g. {shown(by_part[part][both[0]])} and {shown(by_part['test'][both[0]])}"
            remedy = "Move all images of a group to one side, or set dataset.allow_overlap = true"
            message = f"{count} both in {part}/ and in test/, {example}"
            yield part == "server" and not allow_overlap, FedfewError("E207", shown(own.root), message, remedy)


def _small(own: Folder, batch: int) -> Faults:
    """Files that are skipped, and sites with too few images."""
    skipped = [problem for problem in own.problems if problem.skipped]
    if skipped:
        message = f"{len(skipped):,} file{' is' if len(skipped) == 1 else 's are'} skipped, e.g. {skipped[0].path}"
        yield False, FedfewError("E209", shown(own.root), f"{message} {skipped[0].reason}")
    sizes = Counter(own.files[i].group for i in own.rows("clients"))
    small = [f"{shown(name)} ({sizes[name]})" for name in own.groups["clients"] if sizes[name] < batch]
    if small:
        listed = ", ".join(small[:5]) + (", …" if len(small) > 5 else "")
        message = f"{len(small)} of the sites have fewer images than a batch of {batch}: {listed}"
        yield False, FedfewError("E211", shown(own.root), message)


def _names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(map(shown, names))
