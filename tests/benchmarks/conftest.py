"""One thread, and workloads small enough to be prepared in a moment."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.performance.workloads import CIFAR, MNIST, prepare

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small workload, smaller."""
    folder = tmp_path_factory.mktemp("digits")
    prepare(replace(MNIST, images=12, warm=8, labels=20, epochs=3, width=4, clients=3), folder)
    return folder


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large workload, much smaller, on random pixels whether or not CIFAR-10 is here."""
    folder = tmp_path_factory.mktemp("photographs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFEW_DATA", str(folder / "nothing"))
        built = prepare(replace(CIFAR, images=6, warm=4, labels=20, width=4, clients=3), folder)
    assert built.data == "random pixels of CIFAR-10's shape"
    return folder
