"""The scaling, phases and precision benchmarks on tiny sizes: not timed, but counted and added up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.machine import memory_of, own_peak, tree
from benchmarks.performance.phases import KINDS, client_of
from benchmarks.performance.scaling import cell, run, targets
from benchmarks.performance.workloads import WARM, open_workload


def test_a_cell_asks_its_clients_and_trains_nobody() -> None:
    result = run(cell(clients=1_000_000, participation=5 / 1_000_000, rounds=3))
    assert (result["cohort"], result["answered"]) == (5, 5)
    assert result["around"] > 0
    assert result["files"] > 0
    assert result["round"] >= result["seconds"]["clients"]
    assert result["peak_mb"] > 50


def test_targets_compare_the_most_clients_with_the_fewest() -> None:
    small = {"family": "K", "workers": 0, "around": 0.002, "files": 0.010, "peak_mb": 300.0}
    large = small | {"around": 0.004, "files": 0.018, "peak_mb": 550.0}
    few = {"family": "m", "workers": 2, "around": 0.1, "files": 0.0, "peak_mb": 400.0}
    result = targets([small, large, few, few | {"peak_mb": 440.0}])
    assert [target["got"] for target in result] == pytest.approx([4.0, 10.0, 250.0, 1.1])
    assert [target["met"] for target in result] == [True, False, False, True]


def test_a_clients_time_is_told_by_kind_and_adds_up(photographs: Path) -> None:
    opened = open_workload(photographs)
    result = client_of(opened)
    seconds = result["seconds"]
    assert tuple(seconds) == KINDS
    assert sum(seconds.values()) == pytest.approx(result["wall"], rel=0.05)
    for kind in ("forward convolutions", "backward convolutions", "augment", "update"):
        assert seconds[kind] > 0, kind
    assert result["gflops_in_convolutions"] > 0
    assert len(opened.warm) == WARM


def test_memory_is_that_of_a_whole_tree() -> None:
    code = "import sys; room = bytearray(b'x' * 40_000_000); print('there', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        assert {os.getpid(), child.pid} <= set(tree(os.getpid()))
        assert memory_of(child.pid) > 40_000_000
        child.communicate("")
    assert memory_of(child.pid) == 0
    assert own_peak() >= memory_of(os.getpid())
