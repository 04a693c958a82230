"""Fetched datasets on disk: plain arrays with a manifest of hashes, written atomically, checked when read."""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from fedfew.core.errors import FedfewError
from fedfew.data.formats import PARTS, Arrays
from fedfew.data.recipes import Recipe

MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """Where datasets are stored: $FEDFEW_DATA, or the user's cache folder."""
    if own := os.environ.get("FEDFEW_DATA"):
        return Path(own).expanduser()
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "fedfew" / "data"


def is_fetched(name: str) -> bool:
    """Whether the dataset is in the cache; it may still be damaged."""
    return (cache_folder() / name / MANIFEST).is_file()


def store(recipe: Recipe, arrays: Arrays) -> Path:
    """Put decoded arrays into the cache, replacing what was there."""
    target = cache_folder() / recipe.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=target.parent) as temporary:
            made, old = Path(temporary) / "new", Path(temporary) / "old"
            made.mkdir()
            hashes = {}
            for part in PARTS:
                np.save(made / f"{part}.npy", np.ascontiguousarray(arrays[part]))
                hashes[f"{part}.npy"] = _hash(made / f"{part}.npy")
            (made / MANIFEST).write_text(json.dumps({"dataset": recipe.name, "sha256": hashes}, indent=1) + "\n")
            with contextlib.suppress(FileNotFoundError):
                target.rename(old)
            try:
                made.rename(target)
            except OSError:
                # Another process was faster. What it wrote passed the same checks.
                if not is_fetched(recipe.name):
                    raise
    except OSError as error:
        raise FedfewError("E305", str(target), f"the dataset cannot be stored ({error})") from error
    return target


def load(recipe: Recipe) -> Arrays:
    """The arrays of a fetched dataset; their hashes and shapes are checked each time."""
    folder = cache_folder() / recipe.name
    if not is_fetched(recipe.name):
        command = f"fedfew data fetch {recipe.name}"
        remedy = f"Run `{command}`, or `{command} --from PATH` with a local copy."
        raise FedfewError("E201", f"dataset {recipe.name}", f"it is not in {folder.parent}", remedy)
    remedy = f"Run `fedfew data fetch {recipe.name}` to fetch it again."
    try:
        hashes = json.loads((folder / MANIFEST).read_text())["sha256"]
        arrays: Arrays = {}
        for part in PARTS:
            file = folder / f"{part}.npy"
            if _hash(file) != hashes[file.name]:
                raise FedfewError("E202", str(file), "its content has changed since it was fetched", remedy)
            array, expected = np.load(file, allow_pickle=False), recipe.shape.of(part)
            kind = np.uint8 if part.endswith("images") else np.int64
            if array.shape != expected or array.dtype != kind:
                found = f"{array.dtype} {array.shape}"
                raise FedfewError("E202", str(file), f"it holds {found}, not {np.dtype(kind)} {expected}", remedy)
            arrays[part] = array
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise FedfewError("E202", str(folder), f"the dataset cannot be read ({error})", remedy) from error
    return arrays


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
