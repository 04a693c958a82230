"""What an installed package adds by entry points is listed, checked and run like fedfew's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''"""A package that adds a method, an aggregator, a dataset and a model."""

from dataclasses import dataclass

from torch import nn

from fedfew.data.included import mini_mnist
from fedfew.extend import Entry, weighted_mean
from fedfew.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Plain(FedAvg):
    """FedAvg under another name."""


PLAIN = Entry(Plain)


def equal_shares(contributions, omega, sigma):
    """Equal weights."""
    return weighted_mean(contributions, [1 / len(contributions)] * len(contributions))


def digits():
    """The digits included in fedfew."""
    return mini_mnist()


def linear(channels, size, classes):
    """One layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
'''
ENTRY_POINTS = """[fedfew.methods]
plain = added_parts:PLAIN
[fedfew.aggregators]
equal-shares = added_parts:equal_shares
[fedfew.datasets]
more-digits = added_parts:digits
[fedfew.models]
one-layer = added_parts:linear
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which the package is installed: as pip leaves it, a module beside its metadata."""
    (tmp_path / "added_parts.py").write_text(MODULE)
    about = tmp_path / "added_parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: added-parts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def fedfew(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "fedfew", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_parts_of_an_installed_package_are_listed_and_run(installed: dict[str, str], tmp_path: Path) -> None:
    listed = fedfew(installed, "methods")
    for name in ("plain", "equal-shares", "more-digits", "one-layer"):
        assert f"  {name} " in listed
    assert "added-parts" in listed, "the package is named"
    keys = ["method.name=plain", "aggregator.name=equal-shares", "dataset.name=more-digits", "model.name=one-layer"]
    keys += ["rounds=1", "fleet.workers=1", "dataset.unlabeled=100", "dataset.test=50", "dataset.validation=20"]
    chosen = [word for key in keys for word in ("--set", key)]
    result = json.loads(fedfew(installed, "run", "quick", *chosen, "--out", str(tmp_path / "run"), "--json"))
    assert result["rounds"] == 1
    written = (tmp_path / "run" / "run.toml").read_text()
    assert 'name = "plain"' in written and 'name = "equal-shares"' in written
