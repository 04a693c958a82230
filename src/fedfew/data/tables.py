"""The datasets ``parquet`` and ``huggingface``: rows of encoded images and labels; needs the extra ``data``."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.extras import import_optional
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc
from fedfew.data.dataset import Dataset, Problem, Unreadable, dataset_of, numbered, shown
from fedfew.data.images.decode import FILE_CAP, decode, read_file
from fedfew.data.images.own import Channels, Flips, PathTo, Size
from fedfew.data.npz import FREE, RATIO
from fedfew.data.samples import Images

ROWS_AT_ONCE = 32
VALUE = 8
"""Bytes of a decoded number, or of the number of a text in its dictionary, at most."""
Columns = tuple[str, str, str]
"""The names of the columns with the images, the labels and the users."""
ImageColumn = Annotated[str, Doc("column with the encoded images")]
LabelColumn = Annotated[str, Doc("column with the classes, as numbers or names")]
UserColumn = Annotated[str, Doc("column with the user of each image, for the partition users; empty: there is none")]


@dataclass(frozen=True, eq=False)
class ImageRows:
    """One part of a table: its name, its rows as (image, label, user), and the classes' names if the table has them."""

    name: str
    cells: Iterable[tuple[Any, Any, Any]]
    classes: tuple[str, ...] = ()


def parquet(
    *,
    path: PathTo = "",
    size: Size = 64,
    channels: Channels = 3,
    flips: Flips = True,
    image: ImageColumn = "image",
    label: LabelColumn = "label",
    user: UserColumn = "",
) -> Dataset:
    """Your own images in parquet files: one file, or a folder with train-….parquet and test-….parquet."""
    if not path:
        raise FedfewError("E206", "dataset.path", "is missing", 'Write path = "FOLDER" under [dataset]')
    files = _parquet_files(Path(path).expanduser())
    rows = [_parquet_rows(file, (image, label, user)) for file in files]
    return _dataset("parquet", shown(path), rows, size, channels, flips)


def huggingface(
    *,
    path: PathTo = "",
    hub: Annotated[str, Doc("name on the hub, if there is no local path; fetched by the package datasets")] = "",
    size: Size = 64,
    channels: Channels = 3,
    flips: Flips = True,
    image: ImageColumn = "image",
    label: LabelColumn = "label",
    user: UserColumn = "",
) -> Dataset:
    """A Hugging Face dataset: a folder written by ``save_to_disk``, or a name on the hub."""
    if bool(path) == bool(hub):
        raise FedfewError("E206", "dataset.path", "give either path or hub", 'Write path = "FOLDER" under [dataset]')
    datasets = import_optional("datasets", "fedfew[data]", "dataset huggingface")
    where = shown(path or hub)
    try:
        loaded = datasets.load_from_disk(str(Path(path).expanduser())) if path else datasets.load_dataset(hub)
        parts = dict(loaded) if isinstance(loaded, Mapping) else {"train": loaded}
        rows = [_hub_rows(datasets, name, part, (image, label, user), where) for name, part in parts.items()]
        return _dataset("huggingface", where, rows, size, channels, flips)
    except FedfewError:
        raise
    except Exception as error:  # files, network, formats: the package raises nearly anything
        text = " ".join(str(error).split())[:200]
        raise FedfewError("E204", where, f"it cannot be read as a dataset ({text})") from None


def _parquet_files(path: Path) -> list[Path]:
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        message = "holds no .parquet files" if path.is_dir() else "does not exist"
        raise FedfewError("E206", shown(path), message, "Give a parquet file or a folder of them")
    return files


def open_parquet(path: Path) -> Any:
    """A parquet file, open, whose columns of text are read as dictionaries; E205 if it would expand too far.

    A dictionary or a run can stand for any number of values, so it is the decoded values that are counted.
    """
    reader, where = import_optional("pyarrow.parquet", "fedfew[data]", "dataset parquet"), shown(path)
    try:
        file = reader.ParquetFile(path)
        groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
        chunks = [group.column(c) for group in groups for c in range(group.num_columns)]
        texts = {chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"}
        flat = {field.name for field in file.schema_arrow if not field.type.num_fields}  # arrow joins no others
        file = reader.ParquetFile(path, read_dictionary=sorted(texts & flat))
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
        raise FedfewError("E204", where, f"it cannot be read as parquet ({error})") from None
    widths = [file.schema.column(c).length or VALUE for c in range(len(file.schema))] * len(groups)
    claimed = sum(c.total_uncompressed_size + c.num_values * w for c, w in zip(chunks, widths, strict=True))
    if claimed > FREE and claimed > RATIO * path.stat().st_size:
        raise FedfewError("E205", where, f"it would expand to {claimed / 2**20:,.0f} MB")
    return file


def _parquet_rows(path: Path, columns: Columns) -> ImageRows:
    file, where = open_parquet(path), shown(path)
    notes = file.schema_arrow.metadata or {}
    wanted = _needed(file.schema_arrow.names, columns, where)

    def cells() -> Iterator[tuple[Any, Any, Any]]:
        try:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=wanted):
                yield from map(_cells_of(columns), batch.to_pylist())
        except (OSError, ValueError, NotImplementedError) as error:
            raise FedfewError("E202", where, f"it is damaged ({error})") from None

    return ImageRows(path.stem, cells(), _names_in(notes, columns[1]))


def _cells_of(columns: Columns) -> Callable[[Mapping[str, Any]], tuple[Any, Any, Any]]:
    """Takes image, label and user (None where no column holds it) out of a row."""
    image, label, user = columns
    return lambda row: (row[image], row[label], row.get(user))


def _names_in(notes: Mapping[bytes, bytes], label: str) -> tuple[str, ...]:
    """The class names that Hugging Face's packages write into a parquet file."""
    try:
        names = json.loads(notes[b"huggingface"])["info"]["features"][label]["names"]
        return tuple(str(name) for name in names)
    except (KeyError, ValueError, TypeError):
        return ()


def _hub_rows(datasets: Any, name: str, part: Any, columns: Columns, where: str) -> ImageRows:
    wanted = _needed(part.column_names, columns, where)
    names = getattr(part.features[columns[1]], "names", None) or ()
    encoded = part.select_columns(wanted).cast_column(columns[0], datasets.Image(decode=False))
    return ImageRows(name, map(_cells_of(columns), encoded), tuple(names))


def _needed(known: list[str], columns: Columns, where: str) -> list[str]:
    """The columns to read; E204 if one of them is not there."""
    for column in filter(None, columns):
        if column not in known:
            raise FedfewError("E204", where, f"it has no column {column}", f"It has {', '.join(known)}")
    return [column for column in columns if column]


def _dataset(name: str, where: str, parts: list[ImageRows], size: int, channels: int, flips: bool) -> Dataset:
    images: dict[bool, list[NDArray[np.uint8]]] = {False: [], True: []}
    labels: dict[bool, list[Any]] = {False: [], True: []}
    users: dict[bool, list[Any]] = {False: [], True: []}
    problems: list[Problem] = []
    for part in parts:
        tested = "test" in part.name.lower()
        for number, (image, label, user) in enumerate(part.cells):
            row = f"{where} {part.name} row {number}"
            try:
                if label is None:
                    raise Unreadable("has no label")
                pixels, remark = decode(_content(image), size, channels)
            except Unreadable as fault:
                problems.append(Problem(row, str(fault)))
                continue
            images[tested].append(pixels)
            labels[tested].append(label)
            users[tested].append(str(user))
            if remark:
                problems.append(Problem(row, remark, skipped=False))
    if not images[False]:
        why = f"; {problems[0].path} {problems[0].reason}" if problems else ""
        raise FedfewError("E209", where, f"there is no readable image to learn from{why}")
    classes, numbers = numbered(list(labels.values()), next((p.classes for p in parts if p.classes), ()), where)
    shape = (-1, channels, size, size)
    train, test = (
        LabeledSet(Images(torch.from_numpy(np.array(pixels, np.uint8).reshape(shape)), flips), truth)
        for pixels, truth in zip(images.values(), numbers, strict=True)
    )
    named = () if set(users[False]) == {"None"} else users[False]
    return dataset_of(name, classes, train, test, named, problems)


def _content(image: Any) -> bytes:
    """The encoded image of a cell: bytes, or Hugging Face's {"bytes", "path"}."""
    if isinstance(image, Mapping):
        if image.get("bytes") is None and image.get("path"):
            return read_file(Path(image["path"]))
        image = image.get("bytes")
    if not isinstance(image, bytes):
        raise Unreadable("holds no encoded image")
    if len(image) > FILE_CAP:
        raise Unreadable(f"has {len(image) / 2**20:,.0f} MB, the limit is {FILE_CAP // 2**20}")
    return image
