"""The versions that server and sites must have in common: of fedfew's files, not only of its number."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedfew.core.errors import FedfewError

SHOWN = 12


@cache
def build() -> str:
    """A hash of the package's files: every commit has another one, also where the version's number is the same."""
    root, content = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        content.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()[:SHOWN]


def versions() -> dict[str, str]:
    """What each side says about itself."""
    return {name: version(name) for name in ("fedfew", "torch", "flwr")} | {"build": build()}


def check_versions(claimed: Mapping[str, str]) -> None:
    """E417 unless the other side's versions are in the range that fits these.

    Releases of one minor version fit each other, so that a network can be upgraded site by site; equal numbers of
    fedfew must be the same build, because two commits of one version need not agree. torch and Flower may differ in
    their last number, and torch in what it was compiled for.
    """
    ours = versions()
    for name in ("fedfew", "torch", "flwr"):
        theirs = str(claimed.get(name, ours[name] if name == "flwr" else ""))
        if theirs.split(".")[:2] != ours[name].split(".")[:2]:
            raise FedfewError("E417", "versions", f"the other side has {name} {theirs}, this one {ours[name]}")
    if claimed.get("fedfew") == ours["fedfew"] and claimed.get("build") != ours["build"]:
        reason = f"both have fedfew {ours['fedfew']}, but build {claimed.get('build')} there and {ours['build']} here"
        raise FedfewError("E417", "versions", reason, "Install the same commit on both sides")
