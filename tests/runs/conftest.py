"""One undisturbed tiny run, and the same run stopped in the midst, for all tests of this folder."""

from pathlib import Path

import pytest
from tests.runtime.tiny_run import tiny, tiny_run

from fedfew.runs.run import Run
from fedfew.runs.session import start


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
