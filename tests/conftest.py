"""For all tests: what a thousand short runs read again, the package's digits and a backbone's weights, is read once."""

import os
from functools import cache
from importlib import import_module

import pytest

from fedfew.data import DATASETS

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # AMX may be shown and not work: E120

lite0 = import_module("fedfew.models.backbones.efficientnet_lite0")
digits, weights = cache(DATASETS["mini-mnist"]), cache(lite0.read_weights)


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "mini-mnist", digits)
    monkeypatch.setattr(lite0, "read_weights", weights)
