"""``fedfew.from_arrays``: a config for vectors in memory, which are saved once so that the run can be resumed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.storage import digest
from fedfew.data.cache import cache_folder, new_folder

Arrays = Any
"""Vectors N×d (or N×V×d with V views), or N labels: of NumPy, torch, pandas, polars, or lists."""


def from_arrays(
    server: tuple[Arrays, Arrays],
    clients: Sequence[Arrays] | Mapping[str, Arrays],
    test: tuple[Arrays, Arrays] | None = None,
    *,
    path: str | Path | None = None,
) -> dict[str, Any]:
    """A config for ``fedfew.run``: vectors with labels at the server, vectors at each client, a test set.

    The vectors are saved in ``path``, by default a folder of the cache that is named after their content.
    """
    sites = clients if isinstance(clients, Mapping) else {f"client {k}": x for k, x in enumerate(clients)}
    parts = [("server", "", *server), *([("test", "", *test)] if test else [])]
    parts += [("client", name, x, None) for name, x in sites.items()]
    x = [_vectors(part[2], f"{part[0]} {part[1]}".strip()) for part in parts]
    y = [np.empty(0) if part[3] is None else _array(part[3]).reshape(-1) for part in parts]
    for (part, name, *_), rows in zip(parts, x, strict=True):
        if rows.shape[1:] != x[0].shape[1:]:
            message = f"has vectors of shape {rows.shape[1:]}, the server of {x[0].shape[1:]}"
            raise FedfewError("E213", f"{part} {name}".strip(), message, "Give every part the same columns")
    for (part, *_), rows, own in zip(parts[: 1 + bool(test)], x, y, strict=False):
        if len(rows) != len(own):
            raise FedfewError("E213", part, f"{len(rows)} vectors have {len(own)} labels", "Give one for each")
    names = y[0].dtype.kind not in "iu"
    labels = [np.full(len(rows), "" if names else -1) if not len(own) else own for rows, own in zip(x, y, strict=True)]
    content: dict[str, Any] = {
        "x": np.concatenate(x),
        "label": np.concatenate([own.astype(str) if names else own for own in labels]),
        "site": np.repeat([part[1] for part in parts], list(map(len, x))),
        "split": np.repeat([part[0] for part in parts], list(map(len, x))),
    }
    hashes = "".join(digest(array.tobytes()) for array in content.values())
    folder = Path(path) if path else cache_folder() / "arrays" / digest(hashes.encode())[:24]
    with new_folder(folder) as made:
        np.savez(made / "rows.npz", **content)
    dataset = {"name": "vectors", "path": str(folder / "rows.npz"), "validation": len(y[1]) // 4 if test else 0}
    named = {"dataset": dataset, "model": {"name": "linear"}, "method": {"name": "fedmoments"}}
    return {"rounds": 20, "participation": 1.0} | named


def _array(values: Arrays) -> NDArray[Any]:
    """Values of any library that can become an array."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


def _vectors(values: Arrays, where: str) -> NDArray[np.floating[Any]]:
    array = _array(values)
    if array.dtype.kind not in "fiub" or array.ndim not in (2, 3):
        message = f"holds {array.dtype} of shape {array.shape}; numbers N×d, or N×views×d, are needed"
        raise FedfewError("E213", where, message, "Save mixed columns as CSV and use `fedfew try TABLE.csv`")
    return array if array.dtype.kind == "f" else array.astype(np.float32)
