"""An installed package's method, aggregator, dataset and model: listed by name, checked, and used in a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = '''
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from fedfew.core.samples import LabeledSet
from fedfew.data.samples import Images
from fedfew.extend import Aggregate, Dataset, Doc, Fraction
from fedfew.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Halfway(FedAvg):
    """FedAvg with a share of its own."""

    share: Annotated[Fraction, Doc("share of the clients' model")] = 0.5


def first(contributions, omega, sigma) -> Aggregate:
    """The first client alone."""
    return Aggregate(contributions[0].vector, {contributions[0].client: 1.0})


def stripes() -> Dataset:
    """Light and dark images."""
    labels = torch.arange(400) % 2
    images = (40 + 150 * labels[:, None, None, None]).expand(-1, 1, 8, 8).to(torch.uint8).contiguous()
    train, test = (LabeledSet(Images(images[part]), labels[part]) for part in (slice(0, 300), slice(300, None)))
    return Dataset("stripes", train, test, ("dark", "light"))


def line(channels: int, size: int, classes: int, bias: bool = True) -> nn.Module:
    """One linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes, bias=bias))
'''
POINTS = """
[fedfew.methods]
halfway = extra_parts:Halfway
broken = extra_parts:no_such_name
misfit = extra_parts:line
[fedfew.aggregators]
first = extra_parts:first
[fedfew.datasets]
stripes = extra_parts:stripes
[fedfew.models]
line = extra_parts:line
"""
CONFIG = """
rounds = 2
clients = 4
participation = 0.5
labels = 20
[dataset]
name = "stripes"
validation = 0
[partition]
kind = "iid"
[model]
name = "line"
bias = false
[method]
name = "halfway"
share = 0.25
[aggregator]
name = "first"
[fleet]
kind = "pool"
workers = 1
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an installed distribution, as pip leaves it."""
    site = tmp_path / "site"
    info = site / "extra_parts-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "extra_parts.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def fedfew(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    around = os.environ | {"PYTHONPATH": str(package / "site")}
    command = [sys.executable, "-m", "fedfew", *words]
    return subprocess.run(command, cwd=package, env=around, capture_output=True, text=True, timeout=300)


def test_its_names_are_listed_and_explained(package: Path) -> None:
    listed = fedfew(package, "methods")
    assert listed.returncode == 0, listed.stderr
    for name in ("halfway", "first", "stripes", "line"):
        assert f"  {name:20} From the installed package extra-parts." in listed.stdout
    shown = json.loads(fedfew(package, "methods", "halfway", "--json").stdout)
    assert shown["settings"]["share"] == {"default": 0.5, "doc": "share of the clients' model"}


def test_a_config_uses_them_by_name_in_every_process(package: Path) -> None:
    done = fedfew(package, "run", "mine.toml", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    text = (package / "run" / "run.toml").read_text()
    assert 'name = "halfway"' in text and "share = 0.25" in text and "bias = false" in text
    again = fedfew(package, "evaluate", "run", "--json")  # a run folder may name what is installed
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("broken", "E111", "'broken' of an installed package cannot be imported"),
        ("misfit", "E115", "'misfit' is not a subclass of Method"),
        ("halfwya", "E105", "did you mean halfway?"),
    ],
)
def test_what_is_wrong_with_one_is_said(package: Path, name: str, code: str, says: str) -> None:
    told = fedfew(package, "run", "mine.toml", "--set", f"method.name={name}")
    assert told.returncode == 2
    assert code in told.stderr and says in " ".join(told.stderr.split())
