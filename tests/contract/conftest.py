"""Tiny runs of every method, with few fits where only bits matter."""

import pytest
from tests.runtime.every_method import few_fits


@pytest.fixture(autouse=True)
def few_fits_of_fedmoments(monkeypatch: pytest.MonkeyPatch) -> None:
    few_fits(monkeypatch)
