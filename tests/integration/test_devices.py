"""Whole runs with the settings of the engine: on a second device, in bfloat16, compiled."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.runtime.tiny_run import play, tiny_parts

from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.record import left_out


@pytest.fixture(scope="module")
def on_second_device() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.second_device"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_method_and_objective_runs_on_a_second_device(on_second_device: dict[str, Any]) -> None:
    assert {*METHODS, *(f"objective {name}" for name in OBJECTIVES)} <= on_second_device.keys()
    for case, about in on_second_device.items():
        assert about["rejected"] == [[[], []], [[], []]], case
        assert about["moved"] > 0 or case in ("server-only", "labels-names", "pooled"), case
        assert about["apart"] < 1e-6, case


def final_omega(**settings: Any) -> torch.Tensor:
    parts, fleet = tiny_parts(method__threshold=0.1, participation=0.17, **settings)
    rounds = play(parts, fleet, 2)
    assert all(left_out(record) == [] for _, record in rounds)
    return rounds[-1][0].omega


def test_a_run_in_bfloat16_stays_near_one_in_float32() -> None:
    exact, close = final_omega(), final_omega(engine__autocast="bfloat16")
    assert close.dtype == torch.float32
    assert 0 < float((close - exact).norm() / exact.norm()) < 0.01
