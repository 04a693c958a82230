"""From the columns of a table to vectors, by rules that are fixed at the server and travel with the model.

    number     as it is; a missing one becomes the column's mean
    category   a column of 0 and 1 for each value that the server has seen; any other value is 0 in all of them
    vector     as it is, with all of its views
    then       (x − mean) / deviation, at most ``CLIP`` either way, and all times one factor that makes rows about
               ``TYPICAL`` long; a column that never varies at the server is left out

Means and deviations come from sums: over the server's rows, or over those of the sites too (``Sums``), where a site
with fewer than ``FEWEST`` rows adds nothing, as for fedmoments. Which values a category has is the server's to say.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from fedfew.core.errors import FedfewError
from fedfew.data.rows.files import Column, Rows, as_numbers, is_missing
from fedfew.data.samples.vectors import LENGTH, Vectors

Missing = Literal["refuse", "mean"]
Scale = Literal["standard", "length", "none"]
CLIP, TYPICAL = 8.0, LENGTH / 2
FEWEST = 20
"""Rows of a site, at least, whose sums are used; the default of ``min_images`` on a network."""
CATEGORIES, ALWAYS = 100, 10
"""Most values of a category; and how many one may have where most cells differ, as names of patients do."""
NUMERIC = 0.9
"""A column of text is one of numbers if at least this share of its cells are."""
CHUNK = 1 << 16
"""Rows that are encoded at a time."""


@dataclass(frozen=True)
class Encoder:
    """The rules; all fields are JSON's types."""

    columns: list[dict[str, Any]]
    """Name and kind of each column, with the values of a category and the width of a vector."""
    scale: Scale
    missing: Missing
    mean: list[float]
    weight: list[float]
    """The factor of each number of a vector, after its mean is taken away."""

    @staticmethod
    def of(
        rows: Rows, names: Sequence[str], scale: Scale, missing: Missing, sites: Sequence[Rows | Mapping[str, Any]] = ()
    ) -> "Encoder":
        """The encoder for these columns, from the rows that the server knows.

        ``sites``: tables of sites, or the content of their files of sums, for the means and deviations.
        """
        columns = [_column(rows, name) for name in names]
        if not columns or (len(columns) > 1 and any(column.get("views", 1) > 1 for column in columns)):
            message = "vectors with views cannot be joined with others" if columns else "there are none to learn from"
            raise FedfewError("E204", f"{rows.where}, columns", message, "Name others in dataset.columns")
        bare = Encoder(columns, scale, missing, [], [])
        shift = np.nan_to_num(next(bare._matrices(rows))[0, 0])  # so that sums of squares stay exact
        sums = bare._sums(rows, shift)
        for site in sites:
            if not isinstance(site, Rows):
                sums = sums + bare._told(site, shift)
            elif len(site) >= FEWEST:
                sums = sums + bare._sums(site, shift)
        count, total, square = sums
        mean = total / np.maximum(count, 1)
        deviation = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
        varies = deviation > 1e-9 * np.maximum(np.abs(mean + shift), 1e-300)
        if scale == "standard" and not varies.any():
            raise FedfewError("E204", rows.where, "no column varies at the server", "Give rows that differ")
        weight = np.ones_like(mean)
        if scale == "standard":
            weight = varies * TYPICAL / np.sqrt(varies.sum()) / np.where(varies, deviation, 1)
        return Encoder(columns, scale, missing, (mean + shift).tolist(), weight.tolist())

    def _sums(self, rows: Rows, shift: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Counts, sums and sums of squares of each number, after the shift; missing ones count nowhere."""
        sums = np.zeros(())
        for matrix in self._matrices(rows):
            flat = matrix.reshape(-1, matrix.shape[2]) - shift
            known = ~np.isnan(flat)
            flat = np.where(known, flat, 0)
            sums = sums + np.stack([known.sum(0), flat.sum(0), (flat**2).sum(0)])
        return sums

    def _told(self, told: Mapping[str, Any], shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same from a site's file: zero for columns that it does not tell of."""
        parts = []
        for column in self.columns:
            width = len(_parts_of(column))
            own = np.asarray(told.get("columns", {}).get(column["name"], np.zeros((3, width))), np.float64)
            if own.shape != (3, width) or not np.isfinite(own).all() or (own[[0, 2]] < 0).any():
                message = f"the sums of column {column['name']} are not 3×{width} finite numbers"
                raise FedfewError("E213", str(told.get("site", "sums")), message, "Write them with `fedfew data sums`")
            parts.append(own)
        count, total, square = np.concatenate(parts, 1)
        return np.stack([count, total - count * shift, square - 2 * shift * total + count * shift**2])

    @staticmethod
    def told_by(rows: Rows, names: Sequence[str]) -> dict[str, Any]:
        """What a site tells of its columns of numbers and vectors; E213 below ``FEWEST`` rows."""
        if len(rows) < FEWEST:
            message = f"it has {len(rows)} rows; sums of fewer than {FEWEST} would nearly be the rows"
            raise FedfewError("E213", rows.where, message, "Give a larger table")
        columns = [column for name in names if (column := _column(rows, name))["kind"] != "category"]
        told = {c["name"]: Encoder([c], "none", "mean", [], [])._sums(rows, 0.0).tolist() for c in columns}
        return {"site": rows.where, "columns": told}

    @staticmethod
    def described(about: dict[str, Any]) -> "Encoder":
        """The encoder that a model file or a server describes; E309 if that is no encoder."""
        try:
            encoder = Encoder(**about)
            if not len(encoder.mean) == len(encoder.weight) == sum(len(_parts_of(c)) for c in encoder.columns):
                raise ValueError("its widths differ")
        except (TypeError, ValueError, KeyError) as error:
            raise FedfewError("E309", "encoder", f"is not what a run writes ({error})") from None
        return encoder

    def about(self) -> dict[str, Any]:
        """In JSON's types."""
        return asdict(self)

    @property
    def inputs(self) -> list[str]:
        """What each number of a vector is."""
        return [name for column in self.columns for name in _parts_of(column)]

    def __call__(self, rows: Rows) -> Tensor:
        """The vectors of rows, N×V×d: float32, or float16 where that is what the file has."""
        first = self.columns[0]
        small = [first["kind"], rows.column(first["name"]).dtype] == ["vector", np.float16] and len(self.columns) == 1
        shape = len(rows), first.get("views", 1), len(self.mean)
        out = torch.empty(shape, dtype=torch.float16 if small else torch.float32)
        done = 0
        for matrix in self._matrices(rows):
            out[done : done + len(matrix)] = self._scaled(torch.from_numpy(matrix))
            done += len(matrix)
        return out

    def fitting(self, values: Any) -> Vectors:
        """A user's array N×d (or a single vector), a column for each of ``inputs``; E204 if it does not fit."""
        try:
            x = torch.atleast_2d(torch.as_tensor(np.array(values) if isinstance(values, np.ndarray) else values))
        except (ValueError, TypeError, RuntimeError) as error:
            message = f"are no array of numbers ({error}), expected N×{len(self.mean)}"
            raise FedfewError("E204", "vectors", message, f"Give {', '.join(self.inputs[:9])} for each") from None
        if x.shape[-1] != len(self.mean) or x.ndim > 3 or not bool((x.isfinite() | x.isnan()).all()):
            message = f"are {x.dtype} of shape {tuple(x.shape)}, expected finite numbers N×{len(self.mean)}"
            raise FedfewError("E204", "vectors", message)
        if self.missing == "refuse" and bool(x.isnan().any()):
            raise FedfewError("E213", "vectors", "are missing in part", "Fill them in")
        return Vectors(self._scaled(x.double().view(len(x), -1, x.shape[-1])).float(), encoder=self.about())

    def scaled(self, x: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
        """The last step, from raw numbers (NaN where missing) to what a model is fed; with the fields as tensors."""
        if self.scale == "standard":
            bound = CLIP * TYPICAL / max(sum(w > 0 for w in self.weight), 1) ** 0.5
            return ((x - mean) * weight).nan_to_num(0.0).clamp(-bound, bound)
        filled = torch.where(x.isnan(), mean, x)
        return filled if self.scale == "none" else LENGTH * normalize(filled, dim=-1)

    def _scaled(self, x: Tensor) -> Tensor:
        return self.scaled(x, *(torch.tensor(values, dtype=x.dtype) for values in (self.mean, self.weight)))

    def _matrices(self, rows: Rows) -> Iterator[NDArray[np.float64]]:
        """Raw numbers N×V×d, a chunk of the rows at a time."""
        for start in range(0, len(rows), CHUNK):
            part = rows.take(np.arange(start, min(start + CHUNK, len(rows))))
            yield np.concatenate([self._raw(part, column) for column in self.columns], 2)

    def _raw(self, rows: Rows, column: dict[str, Any]) -> NDArray[np.float64]:
        """One column as N×V×width."""
        name, cells = column["name"], rows.column(column["name"])
        if column["kind"] == "category":
            lost = np.array([is_missing(cell) for cell in cells])
            self._refuse(lost, rows, name)
            known = np.array([["" if gone else str(cell)] for cell, gone in zip(cells, lost, strict=True)])
            raw: NDArray[np.float64] = np.equal(known.reshape(-1, 1), np.array(column["values"]))[:, None].astype(float)
            return raw
        if column["kind"] == "number":
            raw = as_numbers(rows, name)[:, None, None]
        else:
            raw = _views(cells, rows.where, name)
            if raw.shape[1:] != (column["views"], column["width"]):
                message = f"its vectors {name} are {raw.shape[1]}×{raw.shape[2]}, the server's"
                message = f"{message} {column['views']}×{column['width']} (views × width)"
                raise FedfewError("E213", rows.where, message, "Compute them as the server's were")
        self._refuse(np.isnan(raw), rows, name)
        if bad := np.argwhere(np.isinf(raw)).tolist():
            raise rows.fault(bad[0][0], _place(raw, bad[0], name), "is infinite", "Correct it, or leave the cell empty")
        return raw

    def _refuse(self, lost: NDArray[np.bool_], rows: Rows, name: str) -> None:
        if self.missing == "refuse" and lost.any():
            first = np.argwhere(lost)[0].tolist()
            remedy = 'Fill it in, or set dataset.missing = "mean" to use the mean over the server\'s rows'
            raise rows.fault(first[0], _place(lost, first, name), "is missing", remedy)


def _place(cells: NDArray[Any], index: Sequence[int], name: str) -> str:
    """The column, and in a vector the number's position."""
    return name if cells.size == len(cells) else f"{name}[{index[-1]}]"


def _parts_of(column: dict[str, Any]) -> list[str]:
    """The names of the numbers that a column becomes."""
    name = column["name"]
    if column["kind"] == "category":
        return [f"{name}={value}" for value in column["values"]]
    return [f"{name}[{i}]" for i in range(column["width"])] if column["kind"] == "vector" else [name]


def _column(rows: Rows, name: str) -> dict[str, Any]:
    """A column's kind, judged by the server's cells."""
    cells = rows.column(name)
    if cells.ndim > 1:
        views, width = _views(cells[:1], rows.where, name).shape[1:]
        return {"name": name, "kind": "vector", "views": views, "width": width}
    known = [cell for cell in cells if not is_missing(cell)] if cells.dtype == object else []
    if sum(map(is_number, known)) >= NUMERIC * len(known):
        return {"name": name, "kind": "number"}
    values = sorted({str(cell) for cell in known})
    if has_decimal_commas(values):
        message = f"the numbers of column {name} have a comma for the decimal point"
        raise FedfewError("E213", rows.where, message, "Save the table with points")
    if not is_category(len(values), len(known)):
        message = f"column {name} has {len(values):,} different values in {len(known):,} rows, so it is no category"
        remedy = f'Leave it out with dataset.columns, or use it as text: dataset.name = "text", text = "{name}"'
        raise FedfewError("E213", rows.where, message, remedy)
    return {"name": name, "kind": "category", "values": values}


def is_category(values: int, cells: int) -> bool:
    """Whether so many different values in so many cells can be those of a category."""
    return values <= CATEGORIES and (values <= ALWAYS or 2 * values <= cells)


def has_decimal_commas(values: Collection[str]) -> bool:
    """Whether these cells are numbers but for a comma in the place of the point."""
    return bool(values) and all("," in value and is_number(value.replace(",", ".", 1)) for value in values)


def is_number(cell: object) -> bool:
    """Whether a cell can be read as a number."""
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _views(cells: Column, where: str, name: str) -> NDArray[np.float64]:
    """A column of vectors as N×V×d."""
    if cells.dtype.kind not in "fiub" or cells.ndim not in (2, 3) or 0 in cells.shape[1:]:
        message = f"{name} is {cells.dtype} {cells.shape}; numbers N×d, or N×views×d, are needed"
        raise FedfewError("E213", where, message, "Save one vector of numbers for each row")
    array: NDArray[np.float64] = (cells[:, None] if cells.ndim == 2 else cells).astype(np.float64)
    return array
