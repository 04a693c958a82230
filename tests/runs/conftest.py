"""One undisturbed tiny run, and the same run stopped in the midst, for all tests of this folder."""

from functools import cache
from pathlib import Path

import pytest
from tests.runtime.tiny_run import tiny, tiny_run

from fedfew.data import DATASETS
from fedfew.runs.run import Run
from fedfew.runs.session import start

read_once = cache(DATASETS["mini-mnist"])


@pytest.fixture(autouse=True)
def digits_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of short runs read the same images."""
    monkeypatch.setitem(DATASETS, "mini-mnist", read_once)


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
