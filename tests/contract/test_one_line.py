"""A new method inside the tree is one file and one line: the file here is a test's, the line stands below."""

import sys

import pytest
import torch
from tests.config import own_parts
from tests.contract.runs import tiny_config, tiny_rounds
from tests.interface.fedfew_command import fedfew

from fedfew.methods import METHODS

LINE = {"halfway": ("halfway:HALFWAY", "Halfway between the server's model and the clients'.")}


@pytest.fixture(autouse=True)
def one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedfew.methods.halfway", own_parts)
    monkeypatch.setattr(METHODS, "table", {**METHODS.table, **LINE})


def test_a_config_names_it_and_it_is_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    document = tiny_config("halfway").document
    assert document["method"] == {"name": "halfway", "share": 0.4}
    assert document["aggregator"]["name"] == f"{own_parts.__name__}:by_root"
    rounds = tiny_rounds(tiny_config("halfway", {"method.share": 0.0}))
    assert len(rounds) == 2 and all(torch.equal(state.omega, state.sigma) for state, _ in rounds)
    assert "halfway " in fedfew(capsys, "methods").out
    assert "weight of the clients" in fedfew(capsys, "methods", "halfway").out
