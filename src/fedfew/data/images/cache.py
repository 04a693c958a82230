"""Reads image files into one uint8 array, and keeps it in a cache that is used as long as no file has changed."""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

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
Pictures = tuple[Tensor, list[int], list[Problem]]
"""The pixels (uint8 N×C×S×S) of the files that could be read, the positions of these files, and remarks."""


def read_files(
    root: Path, files: Sequence[str], size: int, channels: int, report: Report | None = None, *, cached: bool = True
) -> Pictures:
    """The pixels of the files (paths below ``root``), from the cache if it has them as they are now.

    If the cache cannot be written, the files are only decoded again the next time.
    """
    if not cached:
        return _decode(root, files, size, channels, report)
    key = json.dumps([str(root.resolve()), size, channels, VERSION])
    folder = cache_folder() / "folders" / hashlib.sha256(os.fsencode(key)).hexdigest()[:24]
    state = _fingerprint(root, files)
    try:
        facts = json.loads((folder / "manifest.json").read_text("utf-8"))
        if facts["files"] == state and facts["sha256"] == file_digest(folder / "images.npy"):
            images = torch.from_numpy(np.load(folder / "images.npy", allow_pickle=False))
            return images, facts["kept"], [Problem(**problem) for problem in facts["problems"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or damaged: read again
    images, kept, problems = _decode(root, files, size, channels, report)
    with contextlib.suppress(FedfewError), new_folder(folder) as made:
        np.save(made / "images.npy", images.numpy())
        facts = {"kept": kept, "problems": [asdict(problem) for problem in problems], "files": state}
        facts |= {"folder": shown(root.resolve()), "sha256": file_digest(made / "images.npy")}
        (made / "manifest.json").write_text(json.dumps(facts, indent=1), "utf-8")
    return images, kept, problems


def _decode(root: Path, files: Sequence[str], size: int, channels: int, report: Report | None) -> Pictures:
    """Decode one file after the other into one array, so that nothing is in memory twice."""
    images, kept, problems = np.empty((len(files), channels, size, size), np.uint8), list[int](), list[Problem]()
    for number, name in enumerate(files):
        try:
            images[len(kept)], remark = decode(read_file(root / name), size, channels)
        except Unreadable as fault:
            problems.append(Problem(shown(name), str(fault)))
        else:
            kept.append(number)
            if remark:
                problems.append(Problem(shown(name), remark, skipped=False))
        if report is not None:
            report(number + 1, len(files))
    return torch.from_numpy(images[: len(kept)]), kept, problems


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
