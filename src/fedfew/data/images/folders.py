"""Your own images in folders: server/<class>/…, clients/<site>/…, test/<class>/…; each client is a real site.

Instead of class folders, server/ and test/ may hold a labels.csv.
"""

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.types import Report
from fedfew.data.dataset import Problem, shown
from fedfew.data.images.cache import read_files

PARTS = ("server", "clients", "test")
LAYOUT = "Put images into server/<class>/, clients/<site>/ and test/<class>/; or list classes in labels.csv"
LABELS = "labels.csv"
COLUMNS = "Give it a header line `image,label`; images are paths relative to its folder"
CLUTTER = (".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX")
"""What file managers and archives leave in folders, together with macOS's ``._`` files: never images."""


@dataclass(frozen=True)
class ImageFile:
    """A file of the folder with its part (server, clients or test) and its class or site."""

    path: str
    part: str
    group: str


@dataclass(frozen=True)
class Survey:
    """What a folder holds, before any file is opened."""

    root: Path
    files: list[ImageFile]
    groups: dict[str, tuple[str, ...]]
    """Part → its classes or sites, empty ones included."""
    problems: list[Problem]
    """Files that are in no class or site, and folders that cannot be read."""
    unused: list[str]
    """Folders other than server/, clients/ and test/."""


@dataclass(frozen=True, eq=False)
class Contents:
    """A folder with its images read: one row of ``images`` for each of ``files``, in the same order."""

    survey: Survey
    images: Tensor
    files: list[ImageFile]
    problems: list[Problem]

    def rows(self, part: str, group: str | None = None) -> list[int]:
        """The rows of a part's images, or of one of its classes or sites."""
        return [i for i, p in enumerate(self.files) if p.part == part and group in (None, p.group)]


def read_folder(path: str | Path, size: int, channels: int, report: Report | None = None) -> Contents:
    """Scan a folder and read every image in it; faults of single files are listed, not raised."""
    survey = look_through(path)
    pictures = read_files(survey.root, [file.path for file in survey.files], size, channels, report)
    kept = [survey.files[i] for i in pictures.kept]
    return Contents(survey, pictures.images, kept, [*survey.problems, *pictures.problems])


def read_images(
    folder: str | Path, size: int, channels: int, report: Report | None = None
) -> tuple[Tensor, list[Problem]]:
    """All images below a folder, in the order of their paths, as uint8 N×C×size×size; and unusable files."""
    root = existing(folder)
    problems: list[Problem] = []
    pictures = read_files(root, list(walk(root, "", problems)), size, channels, report)
    return pictures.images, problems + pictures.problems


def look_through(path: str | Path) -> Survey:
    """Find the files and the classes and sites they belong to."""
    root = existing(path)
    files: list[ImageFile] = []
    problems: list[Problem] = []
    groups = {}
    for part in PARTS:
        folders, loose = _entries(root / part) if (root / part).is_dir() else ([], [])
        if part != "clients" and LABELS in loose:
            listed = read_labels(root, part, problems)
            groups[part] = tuple(sorted({file.group for file in listed}))
            files += listed
            continue
        groups[part] = tuple(folders)
        owner = "site" if part == "clients" else "class"
        problems += [Problem(shown(f"{part}/{name}"), f"is in no {owner} folder") for name in loose]
        for group in folders:
            files += [ImageFile(name, part, group) for name in walk(root, f"{part}/{group}", problems)]
    unused = [name for name in _entries(root)[0] if name not in PARTS and not name.startswith(".")]
    return Survey(root, files, groups, problems, unused)


def read_labels(root: Path, part: str, problems: list[Problem]) -> list[ImageFile]:
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
            labeled[path] = ImageFile(path, part, label)
        else:
            problems.append(Problem(shown(path), f"is in {LABELS}, but there is no such file"))
    unlisted = [path for path in walk(root, part, problems) if path not in labeled and Path(path).name != LABELS]
    problems += [Problem(shown(path), f"is not in {LABELS}") for path in unlisted]
    return [labeled[path] for path in sorted(labeled)]


def look_into(root: Path, problems: list[Problem]) -> list[ImageFile]:
    """The labeled images of a single folder: <class>/ folders, or a labels.csv."""
    folders, files = _entries(root)
    if LABELS in files:
        return read_labels(root, "", problems)
    return [ImageFile(name, "", group) for group in folders for name in walk(root, group, problems)]


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

    def cannot(error: OSError) -> None:
        problems.append(Problem(_relative(root, error.filename), f"cannot be read: {error.strerror}"))

    for folder, folders, files in os.walk(root / below, onerror=cannot):
        folders[:] = sorted(name for name in folders if not _is_clutter(name))
        links = [link for name in folders if (link := Path(folder) / name).is_symlink()]
        problems += [Problem(_relative(root, link), "is a link to a folder, which is not followed") for link in links]
        for name in sorted(name for name in files if not _is_clutter(name)):
            yield os.path.relpath(Path(folder) / name, root)


def _is_clutter(name: str) -> bool:
    return name in CLUTTER or name.startswith("._")


def _relative(root: Path, path: str | Path) -> str:
    return shown(os.path.relpath(path, root))
