"""For all tests: what a thousand short runs read again, the package's digits and a backbone's weights, is read once."""

from functools import cache
from importlib import import_module

import pytest

from fedfew.data import DATASETS

lite0 = import_module("fedfew.models.backbones.efficientnet_lite0")
digits, weights = cache(DATASETS["mini-mnist"]), cache(lite0.read_weights)


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "mini-mnist", digits)
    monkeypatch.setattr(lite0, "read_weights", weights)
