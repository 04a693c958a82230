"""Folders of image files: which files there are, the class or site of each, their pixels, and copies among them.

Your own images are in server/<class>/…, clients/<site>/…, test/<class>/…; each client is a real site. Instead of class
folders, server/ and test/ may hold a labels.csv.
"""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.types import Report
from fedfew.data.dataset import Problem, shown
from fedfew.data.images.cache import read_files

PARTS = ("server", "clients", "test")
LAYOUT = "Put images into server/<class>/, clients/<site>/ and test/<class>/; or list classes in labels.csv"
LABELS = "labels.csv"
COLUMNS = "Give it a header line `image,label` (or `image,label,group`); images are paths relative to its folder"
CLUTTER = (".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX")
"""What file managers and archives leave in folders, together with macOS's ``._`` files: never images."""


_known: ContextVar[dict[tuple[object, ...], object] | None] = ContextVar("known folders", default=None)
T = TypeVar("T")


@dataclass(frozen=True)
class ImageFile:
    """A file of the folder with its part (server, clients or test) and its class or site."""

    path: str
    part: str = ""
    group: str = ""
    subject: str = ""
    """The patient, or other group, that it shares with other images."""


@dataclass(frozen=True)
class Copy:
    """A file with the same pixels as an earlier file."""

    path: str
    of: str
    across: bool
    """True if one is in server/ and the other in test/."""
    in_two_classes: bool

    @property
    def kind(self) -> str:
        """Why it matters, in a few words."""
        return "in server and test" if self.across else "in two classes" if self.in_two_classes else "copy"


@dataclass(frozen=True, eq=False)
class Folder:
    """What a folder holds; once it is read, one row of ``images`` for each of ``files``, in the same order."""

    root: Path
    files: list[ImageFile]
    problems: list[Problem]
    """Files that are unreadable or in no class or site, and folders that cannot be read."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Part → its classes or sites, empty ones included."""
    unused: tuple[str, ...] = ()
    """Folders other than server/, clients/ and test/."""
    images: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def rows(self, part: str) -> list[int]:
        """The rows of a part's images."""
        return [i for i, file in enumerate(self.files) if file.part == part]

    def read(self, size: int, channels: int, report: Report | None = None, *, cached: bool = True) -> "Folder":
        """The folder with the pixels of all files that can be read; the others are listed as problems."""
        paths = [file.path for file in self.files]
        images, kept, problems = _kept(
            (self.root, size, channels, *paths),
            lambda: read_files(self.root, paths, size, channels, report, cached=cached),
        )
        return replace(self, files=[self.files[i] for i in kept], problems=self.problems + problems, images=images)

    @cached_property
    def copies(self) -> list[Copy]:
        """Every file with the same pixels as an earlier one."""
        first: dict[bytes, ImageFile] = {}
        at_server: dict[bytes, ImageFile] = {}
        copies = []
        for file, image in zip(self.files, self.images.numpy(), strict=True):  # server/ comes before test/
            key = hashlib.blake2b(image.data, digest_size=16).digest()
            across = at_server.get(key) if file.part == "test" else None
            if original := across or first.get(key):
                torn = "clients" not in (file.part, original.part) and file.group != original.group
                copies.append(Copy(shown(file.path), shown(original.path), across is not None, torn))
            first.setdefault(key, file)
            if file.part == "server":
                at_server.setdefault(key, file)
        return copies


@contextmanager
def read_once() -> Iterator[None]:
    """In this context every folder is scanned and read once; files that change meanwhile go unnoticed."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def _kept(key: tuple[object, ...], make: Callable[[], T]) -> T:
    """What was made for this key before, in a context of ``read_once``."""
    known = _known.get()
    if known is None:
        return make()
    if key not in known:
        known[key] = make()
    return cast(T, known[key])


def scan(path: str | Path) -> Folder:
    """The files of server/, clients/ and test/ with their classes and sites; none is opened."""
    root = existing(path)
    return _kept((root,), lambda: _scan(root))


def _scan(root: Path) -> Folder:
    problems = list[Problem]()
    groups, files = {}, list[ImageFile]()
    for part in PARTS:
        groups[part], members = _part(root, part, problems) if (root / part).is_dir() else ((), [])
        files += members
    unused = tuple(name for name in _entries(root)[0] if name not in PARTS and not name.startswith("."))
    return Folder(root, files, problems, groups, unused)


def scan_labeled(path: str | Path) -> Folder:
    """The labeled images of a single folder: <class>/ folders, or a labels.csv."""
    root, problems = existing(path), list[Problem]()
    return Folder(root, _part(root, "", problems)[1], problems)


def scan_unlabeled(path: str | Path) -> Folder:
    """All files below a folder, in the order of their paths."""
    root, problems = existing(path), list[Problem]()
    return Folder(root, [ImageFile(name) for name in walk(root, "", problems)], problems)


def _part(root: Path, part: str, problems: list[Problem]) -> tuple[tuple[str, ...], list[ImageFile]]:
    """The classes or sites of a part, and their files."""
    folders, loose = _entries(root / part)
    if part != "clients" and LABELS in loose:
        files = _listed(root, part, problems)
        return tuple(sorted({file.group for file in files})), files
    owner = "site" if part == "clients" else "class"
    problems += [Problem(shown(Path(part, name)), f"is in no {owner} folder") for name in loose]
    below = ((group, walk(root, str(Path(part, group)), problems)) for group in folders)
    return tuple(folders), [ImageFile(name, part, group) for group, names in below for name in names]


def _listed(root: Path, part: str, problems: list[Problem]) -> list[ImageFile]:
    """The images of a part with their classes, from its labels.csv: a column ``image`` (a path) and one ``label``."""
    table = root / part / LABELS
    try:
        rows = list(csv.DictReader(io.StringIO(table.read_text("utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedfewError("E206", shown(table), f"cannot be read: {error}", COLUMNS) from None
    labeled = {}
    for number, row in enumerate(rows, 2):
        name, label = (str(row.get(column) or "").strip() for column in ("image", "label"))
        path = os.path.normpath(Path(part) / name)
        if not name or not label:
            raise FedfewError("E206", shown(table), f"line {number} has no image or no label", COLUMNS)
        if path.startswith("..") or Path(name).is_absolute() or path in labeled:
            message = "is listed twice" if path in labeled else "is not below the folder"
            raise FedfewError("E206", shown(table), f"line {number}: {shown(name)} {message}", COLUMNS)
        if (root / path).is_file():
            labeled[path] = ImageFile(path, part, label, str(row.get("group") or "").strip())
        else:
            problems.append(Problem(shown(path), f"is in {LABELS}, but there is no such file"))
    unlisted = [path for path in walk(root, part, problems) if path not in labeled and Path(path).name != LABELS]
    problems += [Problem(shown(path), f"is not in {LABELS}") for path in unlisted]
    return [labeled[path] for path in sorted(labeled)]


def existing(path: str | Path) -> Path:
    """The folder, or E206."""
    if not str(path):
        raise FedfewError("E206", "dataset.path", "is missing", 'Write path = "FOLDER" under [dataset]')
    root = Path(path).expanduser()
    if not root.is_dir():
        message = "is a file, not a folder" if root.exists() else "does not exist"
        raise FedfewError("E206", shown(path), message, "Give the folder that holds the images")
    return root


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files, sorted."""
    try:
        with os.scandir(folder) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries if not _is_clutter(entry.name))
    except OSError as error:
        raise FedfewError("E206", shown(folder), f"cannot be read: {error.strerror or error}") from None
    return [name for name, is_folder in names if is_folder], [name for name, is_folder in names if not is_folder]


def walk(root: Path, below: str, problems: list[Problem]) -> Iterator[str]:
    """All files below ``root/below``, as paths from the root. A class or site may be a link; deeper ones may not."""

    def add(path: str | Path, reason: str) -> None:
        problems.append(Problem(shown(os.path.relpath(path, root)), reason))

    def cannot(error: OSError) -> None:
        add(error.filename, f"cannot be read: {error.strerror}")

    for folder, folders, files in os.walk(root / below, onerror=cannot):
        folders[:] = sorted(name for name in folders if not _is_clutter(name))
        for link in (Path(folder, name) for name in folders):
            if link.is_symlink():
                add(link, "is a link to a folder, which is not followed")
        for name in sorted(name for name in files if not _is_clutter(name)):
            yield os.path.relpath(Path(folder) / name, root)


def _is_clutter(name: str) -> bool:
    return name in CLUTTER or name.startswith("._")
