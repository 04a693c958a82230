"""The datasets ``vectors`` and ``text``: rows of one table, or of a table at the server and one for each site.

One table:   a column for the label, and where there are any, for site and split. Rows whose split is test are the test
             set; other rows with a label are the server's, and those without belong to their site. Where every row has
             a label it is a simulation: the server gets ``labels`` of them, and partition ``users`` keeps sites.
A folder:    server.csv, test.csv and clients/<site>.csv, or .parquet, .npz, .npy; for text also files in
             server/<class>/, test/<class>/ and clients/<site>/
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet, Samples, joined
from fedfew.core.settings import Count, Doc, NonNegative
from fedfew.data.dataset import Dataset, SiteSamples, folded, held_out, numbered, shown
from fedfew.data.images.folders import scan, scan_labeled
from fedfew.data.images.own import Fold
from fedfew.data.rows.encoder import Encoder, Missing, Scale
from fedfew.data.rows.files import Rows, is_missing, is_rows, read_rows, read_text
from fedfew.data.samples import Vectors
from fedfew.data.samples.texts import Texts

SPLITS = {"train": "server", "server": "server", "labeled": "server", "test": "test"}
"""What the cells of a split column mean, in any case; any other is a site's."""
SUMS = 'Put the sites\' files of `fedfew data sums` into sums/, or set dataset.statistics = "server"'
LAYOUT = "Give one table with a column label, or a folder with server.csv, clients/<site>.csv and test.csv"

PathTo = Annotated[
    str, Doc("a table, or a folder with server.csv, test.csv and clients/<site>.csv (or .parquet, .npz)")
]
Label = Annotated[str, Doc("column with the classes; empty cells have none")]
Site = Annotated[str, Doc("column with the site of each row, if there is one")]
PartColumn = Annotated[str, Doc("column that says server, test or client, if there is one")]


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The rows of the server, of the test set and of each site."""

    server: Rows
    test: Rows
    sites: dict[str, Rows] | None
    """None in a simulation, where every row has a label."""
    label: str
    site: str


def vectors(
    *,
    path: PathTo = "",
    label: Label = "label",
    site: Site = "site",
    part: PartColumn = "split",
    columns: Annotated[str, Doc("columns to learn from, separated by commas; empty: all others")] = "",
    scale: Annotated[
        Scale,
        Doc("standard: columns to mean 0 and deviation 1 over the server's rows; length: rows of one length; none"),
    ] = "standard",
    missing: Annotated[Missing, Doc("missing values: an error, or the column's mean")] = "refuse",
    statistics: Annotated[
        Literal["server", "sites"],
        Doc("whose rows give means and deviations: the server's, or the sites' too, as sums (`fedfew data sums`)"),
    ] = "server",
    noise: Annotated[NonNegative, Doc("deviation of the noise in weak views, relative to the features")] = 0.1,
    fold: Fold = "",
) -> Dataset:
    """Your own vectors or tables (CSV, parquet, NPZ, NPY): one table, or one at the server and one for each site."""
    parts = read_parts(path, label, site, part)
    chosen = names_of(parts.server, columns, (label, site, part))
    sites = _statistics(parts, Path(path).expanduser()) if statistics == "sites" else []
    encoder = Encoder.of(parts.server, chosen, scale, missing, sites)
    about = encoder.about()
    return assembled("vectors", parts, lambda rows: Vectors(encoder(rows), noise, about), fold)


def _statistics(parts: SplitRows, path: Path) -> list[Rows | dict[str, Any]]:
    """The sites' tables, where they are here; else their files of sums, <path>/sums/<site>.json."""
    if parts.sites != {}:
        return list((parts.sites or {}).values())  # in a simulation the rows of all are the server's before they part
    try:
        told: list[Rows | dict[str, Any]] = [json.loads(file.read_bytes()) for file in sorted(path.glob("sums/*.json"))]
    except ValueError as error:
        raise FedfewError("E204", shown(path / "sums"), f"a file is not JSON ({error})", SUMS) from None
    if not told:
        raise FedfewError("E206", shown(path), "there are neither tables of sites nor files in sums/", SUMS)
    return told


def text(
    *,
    path: PathTo = "",
    text: Annotated[str, Doc("column with the texts")] = "text",
    label: Label = "label",
    site: Site = "site",
    part: PartColumn = "split",
    longest: Annotated[Count, Doc("bytes that a text is cut to")] = 1000,
    fold: Fold = "",
) -> Dataset:
    """Your own texts: a column of a table, or files in server/<class>/, clients/<site>/ and test/<class>/."""
    parts = read_parts(path, label, site, part, text)
    return assembled("text", parts, lambda rows: texts_of(rows, text, longest), fold)


def texts_of(rows: Rows, column: str, longest: int) -> Texts:
    """A column of texts; E213 for a cell without one."""
    cells = rows.column(column)
    if bad := [row for row, cell in enumerate(cells) if cell is None or not str(cell).strip()]:
        raise rows.fault(bad[0], column, f"is empty, as are {len(bad) - 1:,} more", "Leave such rows out")
    return Texts.of(cells, longest, column)


def described(rows: Rows, about: Mapping[str, Any]) -> Samples:
    """Rows as the samples that a model file or a server describes."""
    if "text" in about:
        return texts_of(rows, about["text"], about["shape"][0])
    return Vectors(Encoder.described(about["encoder"])(rows), float(about.get("noise", 0.0)), about["encoder"])


def names_of(rows: Rows, columns: str, roles: Sequence[str]) -> list[str]:
    """The columns to learn from."""
    asked = [name.strip() for name in columns.split(",") if name.strip()]
    for name in asked:
        rows.column(name)
    return asked or [name for name in rows.columns if name not in roles]


def read_parts(path: str, label: str, site: str, split: str, text: str = "") -> SplitRows:
    """The rows by part and site; E206 if the server has none. ``text`` is the column for the content of files."""
    if not path:
        raise FedfewError("E206", "dataset.path", "is missing", 'Write path = "FILE" under [dataset]')
    root = Path(path).expanduser()
    if text and (root / "server").is_dir():
        parts = _of_texts(root, label, site, text)
    else:
        parts = _of_folder(root, label, site) if root.is_dir() else _of_table(read_rows(root), label, site, split)
    for rows in (parts.server, parts.test):
        if bad := np.flatnonzero(~_labeled(rows.column(label))).tolist():
            raise rows.fault(bad[0], label, "is missing", "A row of the server or of the test set needs a label")
    if not len(parts.server):
        raise FedfewError("E206", shown(path), "there are no labeled rows for the server", LAYOUT)
    return parts


def _of_folder(root: Path, label: str, site: str) -> SplitRows:
    files = {part: [file for file in sorted(root.glob(f"{part}.*")) if is_rows(file)] for part in ("server", "test")}
    if [len(part) for part in files.values()] not in ([1, 0], [1, 1]):
        names = ", ".join(shown(file.name) for part in files.values() for file in part) or "neither of them"
        raise FedfewError("E206", shown(root), f"one server file and at most one test file are needed: {names}", LAYOUT)
    server = read_rows(files["server"][0])
    test = read_rows(files["test"][0]) if files["test"] else server.take(np.arange(0))
    sites = {shown(file.stem): read_rows(file) for file in sorted((root / "clients").glob("*.*")) if is_rows(file)}
    return SplitRows(server, test, sites, label, site)


def _of_texts(root: Path, label: str, site: str, text: str) -> SplitRows:
    """Files of text in the folders of classes and sites."""
    folder = scan(root)
    held: dict[tuple[str, str], list[Rows]] = {}
    for file in folder.files:
        key = (file.part, file.group if file.part == "clients" else "")
        rows = read_text(root / file.path, text)
        held.setdefault(key, []).append(rows.with_column(label, file.group) if key[1] == "" else rows)
    together = {key: Rows.joined(parts) for key, parts in held.items()}
    if ("server", "") not in together:
        raise FedfewError("E206", shown(root), "there are no files in server/<class>/", LAYOUT)
    server = together["server", ""]
    sites = {
        shown(name): together["clients", name] for name in folder.groups["clients"] if ("clients", name) in together
    }
    return SplitRows(server, together.get(("test", ""), server.take(np.arange(0))), sites, label, site)


def _of_table(rows: Rows, label: str, site: str, split: str) -> SplitRows:
    labeled, parted = _labeled(rows.column(label)), rows.columns.get(split)
    if parted is None:
        part = np.where(labeled, "server", "").astype(object)
    else:
        part = np.array([SPLITS.get(str(cell).strip().lower(), "") for cell in parted], object)
    if not (part == "test").any() and (part == "server").all():  # a simulation
        part[held_out(np.unique(rows.columns[label].astype(str), return_inverse=True)[1])] = "test"
    server, test = (rows.take(part == name) for name in ("server", "test"))
    away = np.flatnonzero(part == "")
    names = np.array([_site(rows.columns[site][i]) if site in rows.columns else "clients" for i in away], object)
    sites = {shown(name): rows.take(away[names == name]) for name in sorted(set(names))}
    return SplitRows(server, test, sites or None, label, site)


def labeled_rows(path: Path, label: str) -> Rows:
    """The rows of a table that have a label."""
    rows = read_rows(path)
    return rows.take(_labeled(rows.column(label)))


def unlabeled_rows(rows: Rows, label: str) -> Rows:
    """The rows without a label; all, where there is no column of labels."""
    return rows.take(~_labeled(rows.columns[label])) if label in rows.columns else rows


def labeled_texts(path: Path, label: str, text: str) -> Rows:
    """The files of text in the folders of classes; E206 if there are none."""
    files = scan_labeled(path).files
    if not files:
        raise FedfewError("E206", shown(path), "there are no files in <class>/", "Give a folder for each class")
    return Rows.joined([read_text(path / file.path, text).with_column(label, file.group) for file in files])


def _site(cell: object) -> str:
    return "clients" if is_missing(cell) else str(cell)


def _labeled(cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a label is given: a number below 0 stands for none, too."""
    if cells.dtype.kind in "iu":
        return np.asarray(cells >= 0)
    return np.array([not is_missing(cell) for cell in cells], bool)


def class_names(rows: Rows, label: str) -> NDArray[Any]:
    """Labels as text or whole numbers; numbers in a column with gaps come as floats."""
    cells = rows.column(label)
    if cells.dtype.kind == "f" and (cells == np.round(cells)).all():
        return cells.astype(np.int64)
    return np.array([str(cell).strip() for cell in cells]) if cells.dtype == object else cells


def assembled(name: str, parts: SplitRows, samples: Callable[[Rows], Samples], fold: str) -> Dataset:
    """The dataset: with its own sites, or in a simulation with the site of each row as its user."""
    where, label = parts.server.where, parts.label
    classes, numbers = numbered([class_names(rows, label) for rows in (parts.server, parts.test)], (), where)
    if len(classes) < 2:
        raise FedfewError("E206", where, f"column {label} has one class, at least 2 are needed", LAYOUT)
    if unseen := sorted(set(numbers[1].tolist()) - set(numbers[0].tolist())):
        message = f"no row of the server has the class {classes[unseen[0]]} in column {label}, but the test set has"
        raise FedfewError("E206", where, message, "Label some, or leave the class out of the test set")
    train, test = (LabeledSet(samples(rows), y) for rows, y in zip((parts.server, parts.test), numbers, strict=True))
    if parts.sites is None:
        cells = parts.server.columns.get(parts.site)
        users = None if cells is None else np.unique(cells.astype(str), return_inverse=True)[1]
        return Dataset(name, train, test, classes, users=users)
    train, test = folded(train, test, fold) if fold else (train, test)
    held = [samples(rows) for rows in parts.sites.values()]
    offsets = np.cumsum([0, *map(len, held)], dtype=np.int64)
    truth = torch.cat([_truth(rows, label, classes) for rows in parts.sites.values()]) if held else None
    together = joined(held) if held else train.take(torch.arange(0)).samples
    return Dataset(name, train, test, classes, SiteSamples(tuple(parts.sites), together, offsets, truth))


def _truth(rows: Rows, label: str, classes: Sequence[str]) -> Tensor:
    """The classes of a site's rows, where its table knows them; −1 elsewhere."""
    if label not in rows.columns:
        return torch.full((len(rows),), -1)
    number = {name: c for c, name in enumerate(classes)}
    return torch.tensor([number.get(str(cell), -1) for cell in class_names(rows, label)], dtype=torch.int64)
