"""``fedfew.from_arrays``: a config for vectors, tables or texts in memory, saved once so that a run can be resumed."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.storage import digest
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.rows.files import frame_rows

Arrays = Any
"""Vectors N×d (or N×V×d with V views), data frames with mixed columns, N texts, or N labels: of NumPy, torch, pandas,
polars, or lists."""
ROLES = ("label", "site", "split")
Part = tuple[str, str, Arrays, Arrays]
"""server, test or client; the client's name; samples; labels or None."""


def from_arrays(
    server: tuple[Arrays, Arrays],
    clients: Sequence[Arrays] | Mapping[str, Arrays],
    test: tuple[Arrays, Arrays] | None = None,
    *,
    path: str | Path | None = None,
) -> dict[str, Any]:
    """A config for ``fedfew.run``: samples with labels at the server, samples at each client, a test set.

    Samples are vectors, data frames with mixed columns, or texts. They are saved in ``path``, by default a folder of
    the cache that is named after their content.
    """
    sites = clients if isinstance(clients, Mapping) else {f"client {k}": x for k, x in enumerate(clients)}
    if not sites or "" in sites:
        raise FedfewError("E213", "clients", "there are none, or one has no name", "Give the samples of each client")
    parts: list[Part] = [("server", "", *server), *([("test", "", *test)] if test else [])]
    parts += [("client", str(name), x, None) for name, x in sites.items()]
    y = [np.empty(0) if part[3] is None else _array(part[3]).reshape(-1) for part in parts]
    tables = [_columns(part[2], part[1] or part[0]) for part in parts]
    content = _vectors(parts, y) if tables[0] is None else _table(parts, tables, y)
    hashes = "".join(digest(array.tobytes() if array.dtype != object else str(array.tolist()).encode())
                     for array in content.values())  # fmt: skip
    folder = Path(path) if path else cache_folder() / "arrays" / digest(hashes.encode())[:24]
    text, file = "text" in content, folder / ("rows.npz" if tables[0] is None else "rows.csv")
    with new_folder(folder) as made:
        _save(made / file.name, content)
    dataset = {"name": "text" if text else "vectors", "path": str(file), "validation": 0}
    named = {"dataset": dataset, "model": {"name": "sentence" if text else "linear"}, "method": {"name": "fedmoments"}}
    return {"rounds": 20, "participation": 1.0} | named


def _save(path: Path, content: Mapping[str, NDArray[Any]]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **content)  # type: ignore[arg-type]
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(content)
        writer.writerows(zip(*(cells.tolist() for cells in content.values()), strict=True))


def _roles(parts: Sequence[Part], y: Sequence[NDArray[Any]], lengths: Sequence[int]) -> dict[str, NDArray[Any]]:
    """The columns label, site and split; E213 unless there is a label for every sample of server and test set."""
    for (part, *_, labels), own, length in zip(parts, y, lengths, strict=True):
        if labels is not None and len(own) != length:
            raise FedfewError("E213", part, f"{length} samples have {len(own)} labels", "Give one for each")
    names = y[0].dtype.kind not in "iu"
    known = [np.full(n, "" if names else -1) if not len(own) else own for n, own in zip(lengths, y, strict=True)]
    return {
        "label": np.concatenate([own.astype(str) if names else own for own in known]),
        "site": np.repeat([part[1] for part in parts], lengths),
        "split": np.repeat([part[0] for part in parts], lengths),
    }


def _vectors(parts: Sequence[Part], y: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    x = [_numbers(part[2], part[1] or part[0]) for part in parts]
    for (part, name, *_), rows in zip(parts, x, strict=True):
        if rows.shape[1:] != x[0].shape[1:]:
            message = f"has vectors of shape {rows.shape[1:]}, the server of {x[0].shape[1:]}"
            raise FedfewError("E213", name or part, message, "Give every part the same columns")
    return {"x": np.concatenate(x)} | _roles(parts, y, list(map(len, x)))


def _table(
    parts: Sequence[Part], tables: Sequence[dict[str, NDArray[Any]] | None], y: Sequence[NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    first = next(filter(None, tables))
    for (part, name, *_), columns in zip(parts, tables, strict=True):
        if columns is None or set(columns) != set(first) or set(columns) & set(ROLES):
            have = "numbers only" if columns is None else f"columns {', '.join(list(columns)[:9])}"
            remedy = f"Give every part the columns {', '.join(list(first)[:9])}, none of them called {', '.join(ROLES)}"
            raise FedfewError("E213", name or part, f"has {have}", remedy)
    held = [columns for columns in tables if columns is not None]
    joined = {name: np.concatenate([columns[name].astype(object) for columns in held]) for name in first}
    return joined | _roles(parts, y, [len(next(iter(columns.values()))) for columns in held])


def _columns(values: Arrays, where: str) -> dict[str, NDArray[Any]] | None:
    """The columns of a data frame that are not all numbers, or of texts; None for numbers."""
    if hasattr(values, "columns"):
        columns = frame_rows(values, where).columns
        return None if all(cells.dtype.kind in "fiub" for cells in columns.values()) else columns
    if hasattr(values, "detach"):
        return None
    array = _array(values)
    return {"text": array} if array.ndim == 1 and array.dtype.kind in "OUT" else None


def _array(values: Arrays) -> NDArray[Any]:
    """Values of any library that can become an array; E213 for ragged ones."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError as error:
        raise FedfewError("E213", "arrays", f"are no array ({error})", "Give rows of one length") from None


def _numbers(values: Arrays, where: str) -> NDArray[np.floating[Any]]:
    array = _array(values)
    if array.dtype.kind not in "fiub" or array.ndim not in (2, 3):
        message = f"holds {array.dtype} of shape {array.shape}; numbers N×d, or N×views×d, are needed"
        raise FedfewError("E213", where, message, "Give numbers, a data frame, or a list of texts")
    return array if array.dtype.kind == "f" else array.astype(np.float32)
