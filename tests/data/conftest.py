"""A cache of its own for every test that fetches, and no way out of the machine."""

import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fedfew.data import sources


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing a test does reaches the user's cache, the network, or another program."""
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", tmp_path / "usr-share")
    return tmp_path / "cache"


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError("no network here")
