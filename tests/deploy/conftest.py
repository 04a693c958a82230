"""Small runs for the tests of the network."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfew.config.parts import Parts, assemble
from fedfew.config.schema import load
from fedfew.runs.session import one_thread


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """As in every process of a run: equal bits need an equal number of threads."""
    with one_thread():
        yield


TINY: dict[str, Any] = {
    "clients": 6,
    "participation": 0.5,
    "labels": 40,
    "rounds": 3,
    "dataset.unlabeled": 96,
    "dataset.validation": 20,
    "dataset.test": 40,
    "server.epochs": 1,
    "model.width": 4,
    "fleet.kind": "inline",
}


@pytest.fixture
def tiny() -> Callable[..., Parts]:
    """The parts of a run that takes a second."""
    return lambda **changes: assemble(load("quick", TINY | {key.replace("__", "."): v for key, v in changes.items()}))


@pytest.fixture
def images(tmp_path: Path, tiny: Callable[..., Parts]) -> Path:
    """Images of a site's own."""
    np.savez(tmp_path / "own.npz", images=tiny().federation.samples.data[:20].numpy())
    return tmp_path / "own.npz"
