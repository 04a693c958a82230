"""A cache of decoded image files: their pixels as one uint8 array, used as long as no file has changed."""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.storage import file_digest
from fedfew.core.types import Report
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.dataset import Problem, Unreadable, shown
from fedfew.data.images.decode import decode, read_file

VERSION = 1
"""Increased when the same file would give other pixels."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """A list of files, decoded: the pixels of those that could be read, which ones these are, and remarks."""

    images: Tensor
    """uint8 N×C×S×S"""
    kept: list[int]
    """Image i is file ``kept[i]`` of the list."""
    problems: list[Problem]


def read_files(
    root: Path, files: Sequence[str], size: int, channels: int, report: Report | None = None, *, cached: bool = True
) -> Pictures:
    """The pixels of the files (paths below ``root``), from the cache if it has them as they are now.

    If the cache cannot be written, the files are only decoded again the next time.
    """
    if not cached:
        with tempfile.TemporaryDirectory(prefix="fedfew-") as temporary:
            return _load(Path(temporary), _read(Path(temporary), root, files, size, channels, report))
    key = json.dumps([str(root.resolve()), size, channels, VERSION])
    folder = cache_folder() / "folders" / hashlib.sha256(os.fsencode(key)).hexdigest()[:24]
    state = _fingerprint(root, files)
    try:
        facts = json.loads((folder / "manifest.json").read_text("utf-8"))
        if facts["files"] == state and facts["sha256"] == file_digest(folder / "images.npy"):
            return _load(folder, facts)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or damaged: read again
    try:
        with new_folder(folder) as made:
            facts = _read(made, root, files, size, channels, report) | {"files": state, "folder": shown(root.resolve())}
            facts["sha256"] = file_digest(made / "images.npy")
            (made / "manifest.json").write_text(json.dumps(facts, indent=1), "utf-8")
            return _load(made, facts)
    except FedfewError:
        return read_files(root, files, size, channels, report, cached=False)


def _read(
    folder: Path, root: Path, files: Sequence[str], size: int, channels: int, report: Report | None
) -> dict[str, Any]:
    """Decode one file after the other straight to the disk, so that memory does not grow with their number."""
    kept, problems = [], []
    header = {"descr": "|u1", "fortran_order": False}
    with (folder / "images.npy").open("wb") as out:
        np.lib.format.write_array_header_1_0(out, header | {"shape": (len(files), channels, size, size)})
        for number, name in enumerate(files):
            try:
                pixels, remark = decode(read_file(root / name), size, channels)
            except Unreadable as fault:
                problems.append(Problem(shown(name), str(fault)))
            else:
                out.write(pixels.tobytes())
                kept.append(number)
                if remark:
                    problems.append(Problem(shown(name), remark, skipped=False))
            if report is not None:
                report(number + 1, len(files))
        out.seek(0)  # NumPy pads the header so that the first number may change in place
        np.lib.format.write_array_header_1_0(out, header | {"shape": (len(kept), channels, size, size)})
    return {"kept": kept, "problems": [asdict(problem) for problem in problems]}


def _load(folder: Path, facts: dict[str, Any]) -> Pictures:
    images = torch.from_numpy(np.load(folder / "images.npy", allow_pickle=False))
    return Pictures(images, facts["kept"], [Problem(**problem) for problem in facts["problems"]])


def _fingerprint(root: Path, files: Sequence[str]) -> str:
    """Changes when a file is added, removed, renamed or written."""
    seen = hashlib.sha256()
    for name in files:
        try:
            about = (root / name).stat()
            state = f"{about.st_size} {about.st_mtime_ns}"
        except OSError as error:
            state = f"error {error.errno}"
        seen.update(os.fsencode(name) + b"\0" + state.encode() + b"\0")
    return seen.hexdigest()
