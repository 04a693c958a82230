"""The benchmarks of compression and of Flower: the numbers they print are those of the runs they made."""

import argparse
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compression import KINDS, line, measure

from fedfew.config.parts import assemble
from fedfew.config.schema import load


def test_bytes_of_an_update_are_those_of_its_codec() -> None:
    changes: dict[str, Any] = {"model.width": 4, "dataset.unlabeled": 100, "dataset.test": 50, "server.epochs": 1}
    changes["fleet.kind"] = "inline"
    layout = assemble(load("quick", changes)).network.layout
    size, accuracy = measure("fedmix", changes | KINDS["int8"], seed=0, rounds=1)
    assert size == layout.trainable + 4 * ceil(layout.trainable / 1024) + 4 * (layout.size - layout.trainable)
    assert 0 <= accuracy <= 1


def test_a_row_has_size_mean_and_difference() -> None:
    plain = {"method": "m", "kind": "none", "bytes": 4000.0, "mean": 0.8, "sd": 0.01, "difference": 0.0}
    small = plain | {"kind": "int8", "bytes": 1000.0, "mean": 0.79, "difference": -0.01, "difference_sd": 0.002}
    rows = [plain | {"difference_sd": 0.0}, small]
    assert line(rows[1], rows) == "| m | int8 | 1.0 kB | 4.0× | 79.0 ± 1.0 | −1.0 ± 0.2 |"
    assert line(rows[0], rows).endswith("| 80.0 ± 1.0 |  |")


def test_ratios_are_of_medians(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr")
    from benchmarks.flower import report, show

    options = argparse.Namespace(megabytes=26, sites=5, images=10, out=Path("x"))
    result = report({"floor": [2.0, 1.0, 9.0], "plain": [4.0, 3.0, 5.0], "fedfew": [2.5, 2.0, 3.0]}, options)
    assert (result["faster_than_plain"], result["over_floor"]) == (1.6, 1.25)
    show(result)
    assert "1.60 times faster than plain, 1.25 times the floor" in capsys.readouterr().out
