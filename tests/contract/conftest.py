"""One thread, as in a run: these tensors are too small to share out, and the bits are those of a worker."""

import pytest
import torch
from tests.runtime.every_method import few_fits

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def few_fits_of_fedmoments(monkeypatch: pytest.MonkeyPatch) -> None:
    few_fits(monkeypatch)
