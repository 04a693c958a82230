"""For all tests: one thread, as in a run; what a thousand short runs read again is read once; and a run, stopped."""

import os
import shutil
import urllib.request
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from tests.runtime.tiny_run import few_fits, tiny, tiny_run

from fedfew.data import sources
from fedfew.runs.run import Run
from fedfew.runs.session import start

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # AMX may be shown and not work: E120

settings.register_profile("repeatable", derandomize=True)  # a landing must not depend on a draw
if os.environ.get("CI"):
    settings.load_profile("repeatable")

torch.set_num_threads(1)  # tensors here are too small to share out, and the bits are those of a worker
included, lite0 = (import_module(f"fedfew.{name}") for name in ("data.included", "models.backbones.efficientnet_lite0"))
digits, weights = cache(included.mini_mnist), cache(lite0.read_weights)


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(included, "mini_mnist", digits)
    monkeypatch.setattr(lite0, "read_weights", weights)


@pytest.fixture(autouse=True)
def few_fits_of_fedmoments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny runs of every method have few fits in these folders, where only bits matter."""
    if request.path.parent.name in ("contract", "integration", "runs", "runtime"):
        few_fits(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three rounds from start to end."""
    return tiny_run(tmp_path_factory.mktemp("undisturbed") / "run", rounds=3)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run after two of its rounds."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    rounds = start(tiny(rounds=3), folder).advance()
    next(rounds)
    next(rounds)
    rounds.close()
    return folder


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
