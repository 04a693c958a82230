"""Files of rows (CSV, parquet, NPZ, NPY) as named columns, read within limits; a faulty file is refused with its place.

A column holds text, numbers, or a vector in every row (N×d, or N×V×d with V views).
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.extras import import_optional
from fedfew.data.dataset import shown
from fedfew.data.npz import read_npz
from fedfew.data.tables import open_parquet

Column = NDArray[Any]
SUFFIXES = (".csv", ".tsv", ".parquet", ".npz", ".npy")
CSV_CAP = 512 * 2**20
"""Bytes of the largest CSV file: its cells take ten times as much memory."""
CELLS = 100_000
"""Cells of a line of CSV, at most."""
LINE = 16 * 10**6
"""Letters of a line of CSV, at most."""
TEXT_FILES = (".txt", ".md")
TEXT_CAP = 16 * 2**20
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
"""Cells of text that stand for a missing value, in any case."""
ALIASES = {
    "vectors": "x", "features": "x", "embeddings": "x", "y": "label", "labels": "label", "sites": "site",
}  # fmt: skip
"""Other names that arrays of an NPZ file may have."""
LABELS = "_labels"
"""The labels of ``server.npy`` are in ``server_labels.npy``."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of equal length, and where each row stands in its file."""

    where: str
    columns: dict[str, Column]
    numbers: NDArray[np.int64]
    unit: str = "row"
    """What the numbers count: the lines of a CSV file, or rows from 0."""

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, which: NDArray[Any]) -> "Rows":
        """The rows at these positions, or those that a mask selects."""
        return replace(self, columns={n: c[which] for n, c in self.columns.items()}, numbers=self.numbers[which])

    def with_column(self, name: str, cell: str) -> "Rows":
        """The rows with the same cell in a further column."""
        return replace(self, columns=self.columns | {name: np.array([cell] * len(self), object)})

    @staticmethod
    def joined(parts: Sequence["Rows"]) -> "Rows":
        """Rows of several files of the same columns, one row each."""
        names = parts[0].columns
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
        return Rows(str(Path(parts[0].where).parent), columns, np.arange(len(parts)), "file")

    def names(self) -> list[str]:
        """A name for every row."""
        if self.unit == "file":
            return [self.where] * len(self)
        return [f"{self.where} {self.unit} {number}" for number in self.numbers]

    def fault(self, row: int, column: str, message: str, remedy: str) -> FedfewError:
        """E213 for one cell."""
        cell = f"{self.where} {self.unit} {self.numbers[row]}, column {column}"
        return FedfewError("E213", cell, message, remedy)

    def column(self, name: str) -> Column:
        """A column; E204 if there is none of this name."""
        if name not in self.columns:
            have = ", ".join(list(self.columns)[:12]) + (", …" if len(self.columns) > 12 else "")
            raise FedfewError("E204", self.where, f"it has no column {name}", f"It has {have}")
        return self.columns[name]


def is_rows(path: Path) -> bool:
    """Whether a path is a file of rows, judged by its name."""
    return path.suffix.lower() in SUFFIXES and not path.stem.endswith(LABELS)


def read_rows(path: Path) -> Rows:
    """A file of rows; E204, E205, E206 or E213 if it cannot be used."""
    if not path.is_file():
        raise FedfewError("E206", shown(path), "does not exist", f"Give a file that ends with {', '.join(SUFFIXES)}")
    match path.suffix.lower():
        case ".csv" | ".tsv":
            return _csv(path)
        case ".parquet":
            columns = _parquet(path)
        case ".npz":
            known = (*ALIASES, "x", "label", "site", "split", "text", "classes")
            columns = {ALIASES.get(name, name): array for name, array in read_npz(path, known).items()}
        case ".npy":
            columns = _npy(path)
        case _:
            raise FedfewError("E204", shown(path), "is no file of rows", f"Give one of {', '.join(SUFFIXES)}")
    names = columns.pop("classes", None)
    if columns.get("label", np.empty(0)).shape[1:] == (1,):
        columns["label"] = columns["label"][:, 0]
    columns = {name: array.astype(object) if array.dtype.kind in "US" else array for name, array in columns.items()}
    lengths = {name: len(array) for name, array in columns.items() if array.ndim}
    if not columns or len(lengths) < len(columns) or len(set(lengths.values())) > 1:
        contents = ", ".join(f"{name} {array.shape}" for name, array in columns.items()) or "nothing usable"
        raise FedfewError("E204", shown(path), f"it holds {contents}", "It needs x (N×d) and, where known, label (N)")
    if names is not None and "label" in columns and columns["label"].dtype.kind in "iu":
        numbers = columns["label"].astype(np.int64)
        if numbers.size and not -1 <= numbers.min() <= numbers.max() < names.size:
            message = f"labels go from {numbers.min()} to {numbers.max()}, but there are {names.size} classes"
            raise FedfewError("E204", shown(path), message, "Number them from 0; -1: no label")
        columns["label"] = np.array([*names.ravel().tolist(), None], object)[numbers]
    return Rows(shown(path), columns, np.arange(next(iter(lengths.values()))))


def read_tables(paths: Sequence[str | Path], text: str = "") -> list[Rows]:
    """Tables; where ``text`` names the column of texts, also files of text and folders of them. E206 without rows."""
    tables: list[Rows] = []
    for path in map(Path, paths):
        if text and path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
            tables += [read_text(file, text) for file in files]
        else:
            tables.append(read_text(path, text) if text and path.suffix.lower() in TEXT_FILES else read_rows(path))
    if not any(map(len, tables)):
        raise FedfewError("E206", ", ".join(map(shown, paths)), "there are no rows", "Give a table with rows")
    return tables


def frame_rows(frame: Any, where: str = "frame") -> Rows:
    """The columns of a data frame of pandas or polars; E213 if two have one name."""
    if twice := [name for name, times in Counter(map(str, frame.columns)).items() if times > 1]:
        raise FedfewError("E213", where, f"it has the column {twice[0]} twice", "Name each once")
    columns = {str(name): np.asarray(frame[name]) for name in frame.columns}
    plain = {name: cells if cells.dtype.kind in "fiub" else cells.astype(object) for name, cells in columns.items()}
    return Rows(where, plain, np.arange(len(frame)))


def read_text(path: Path, column: str = "text") -> Rows:
    """A file of text as one row; E204 if it is not UTF-8, E205 if it is too large."""
    if path.stat().st_size > TEXT_CAP:
        raise FedfewError("E205", shown(path), f"has more than {TEXT_CAP // 2**20} MB", "Give shorter texts")
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FedfewError("E204", shown(path), "is not UTF-8", "Save it as UTF-8") from None
    return Rows(shown(path), {column: np.array([content], object)}, np.arange(1), "file")


def _csv(path: Path) -> Rows:
    where, size = shown(path), path.stat().st_size
    if size > CSV_CAP:
        message = f"it has {size / 2**20:,.0f} MB, the limit for CSV is {CSV_CAP // 2**20}"
        raise FedfewError("E205", where, message, "Save it as parquet or NPZ")
    lines, cells = list[int](), list[list[str]]()
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            head = file.readline(LINE)
            delimiter = max(",;\t", key=head.count)
            reader = csv.reader(_lines(file, head, delimiter, where), delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            for row in filter(None, reader):
                if len(row) != len(header):
                    message = f"it has {len(row)} cells, the header has {len(header)}"
                    raise FedfewError(
                        "E213", f"{where} line {reader.line_num}", message, "Give every line as many cells"
                    )
                cells.append(row)
                lines.append(reader.line_num)
        except csv.Error as error:
            raise FedfewError("E204", f"{where} line {reader.line_num}", f"cannot be read as CSV: {error}") from None
        except UnicodeDecodeError:
            raise FedfewError("E204", where, _not_utf8(path), "Save it as UTF-8 (CSV UTF-8)") from None
    if odd := [name for name, times in Counter(header).items() if times > 1 or not name]:
        raise FedfewError("E204", where, f"the header has the name {odd[0]!r} twice, or an empty one", "Name each once")
    if not cells:
        raise FedfewError("E204", where, "it has no rows below its header", "Give a header line and rows")
    columns = {name: np.array(column, object) for name, column in zip(header, zip(*cells, strict=True), strict=True)}
    return Rows(where, columns, np.array(lines), "line")


def _lines(file: TextIO, line: str, delimiter: str, where: str) -> Iterator[str]:
    """The lines, each of bounded length and with a bounded number of cells: one alone could fill the memory."""
    for number in count(1):
        if not line:
            return
        if "\0" in line:
            raise FedfewError("E204", where, "it holds zero bytes, so it is no text", "Save it as CSV in UTF-8")
        if line.count(delimiter) > CELLS or len(line) == LINE:
            message = f"line {number} has more than {CELLS:,} cells or {LINE // 10**6} million letters"
            raise FedfewError("E205", where, message, "Save wide vectors as parquet, NPZ or NPY")
        yield line
        line = file.readline(LINE)


def _not_utf8(path: Path) -> str:
    """Which line is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"line {number} is not UTF-8"
    return "it is not UTF-8"


def _npy(path: Path) -> dict[str, Column]:
    """One array of vectors, and the labels next to it."""
    columns = {}
    for name, file in (("x", path), ("label", path.with_name(f"{path.stem}{LABELS}.npy"))):
        if name == "x" or file.is_file():
            try:
                columns[name] = np.load(file, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise FedfewError("E204", shown(file), f"it cannot be read as NPY ({error})") from None
    return columns


def _parquet(path: Path) -> dict[str, Column]:
    file, where = open_parquet(path), shown(path)
    try:
        table = file.read([field.name for field in file.schema_arrow if _is_column(field.type)])
        return {name: _array(table.column(name), f"{where}, column {name}") for name in table.column_names}
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own errors are kinds of these
        raise FedfewError("E202", where, f"it is damaged, or has a column that cannot be read ({error})") from None


def _is_column(kind: Any) -> bool:
    """Whether it holds text, numbers or vectors; lists of text, and structs, are neither."""
    types, nested = import_optional("pyarrow", "fedfew[data]", "parquet").types, kind
    while types.is_list(nested) or types.is_large_list(nested) or types.is_fixed_size_list(nested):
        nested = nested.value_type
    is_number = types.is_boolean(nested) or types.is_integer(nested) or types.is_floating(nested)
    return bool(is_number or (nested is kind and not types.is_nested(kind)))


def _array(column: Any, where: str) -> Column:
    """A column of parquet: numbers with NaN where they are null, text with None, or vectors of one width."""
    types = import_optional("pyarrow", "fedfew[data]", "parquet").types
    widths_of = import_optional("pyarrow.compute", "fedfew[data]", "parquet").list_value_length
    flat, shape, kind = column.combine_chunks(), [len(column)], column.type
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        widths = widths_of(flat).to_numpy(zero_copy_only=False).astype(float)  # NaN where a row has none
        if odd := np.flatnonzero(~(widths == widths[:1])).tolist():
            message = f"has {widths[odd[0]]:g} numbers, the first row {widths[0]:g}"
            raise FedfewError("E213", f"{where} row {odd[0]}", message, "Give every row a vector of the same width")
        flat, kind = flat.flatten(), kind.value_type
        shape.append(int(widths[0]) if len(widths) else 0)
    if types.is_boolean(kind):
        flat = flat.cast("int8")
    elif types.is_dictionary(kind):  # the same text in many rows is one object
        texts: Column = np.array([*flat.dictionary.cast("string").to_pylist(), None], object)
        cells: Column = np.take(texts, flat.indices.fill_null(len(texts) - 1).to_numpy())
        return cells
    elif not (types.is_integer(kind) or types.is_floating(kind)):
        flat = flat.cast("string")
    array: Column = flat.to_numpy(zero_copy_only=False)
    return array.reshape(shape)


def as_numbers(rows: Rows, name: str) -> NDArray[np.float64]:
    """A column as numbers, NaN where a cell is empty; E213 for one that is no number."""
    column = rows.column(name)
    if column.dtype.kind in "fiub":
        return column.astype(np.float64)
    return np.fromiter(_parsed(rows, name, column), np.float64, len(column))


def _parsed(rows: Rows, name: str, column: Column) -> Iterator[float]:
    for row, cell in enumerate(column):
        try:
            yield np.nan if is_missing(cell) else float(cell)
        except ValueError:
            remedy = "Correct it, leave it empty, or leave the column out with dataset.columns"
            raise rows.fault(
                row, name, f"{str(cell)[:40]!r} is not a number, as most of its cells are", remedy
            ) from None


def is_missing(cell: object) -> bool:
    """Whether a cell has no value."""
    return cell is None or str(cell).strip().lower() in MISSING
