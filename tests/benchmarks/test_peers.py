"""The benchmarks of performance on tiny sizes: not timed, but counted and added up; all contestants do the same."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.machine import memory_of, own_peak, run_watched, tree
from benchmarks.performance import peer_fedfew, peer_torch
from benchmarks.performance.peers import summary
from benchmarks.performance.peers_table import ratio, rows, targets
from benchmarks.performance.phases import KINDS, client_of
from benchmarks.performance.scaling import cell, run
from benchmarks.performance.scaling import targets as scaling_targets
from benchmarks.performance.workloads import CIFAR, MNIST, WARM, Cost, Workload, cost, open_workload, prepare
from torch.utils.flop_counter import FlopCounterMode

from fedfew.config.parts import Parts, assemble
from fedfew.core.samples import Samples
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite
from fedfew.methods.fedmix import FedMix


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small workload, smaller."""
    folder = tmp_path_factory.mktemp("digits")
    prepare(replace(MNIST, images=12, warm=8, labels=20, epochs=3, width=4, clients=3), folder)
    return folder


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large workload, much smaller, on random pixels whether or not CIFAR-10 is here."""
    folder = tmp_path_factory.mktemp("photographs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFEW_DATA", str(folder / "nothing"))
        built = prepare(replace(CIFAR, images=6, warm=4, labels=20, width=4, clients=3), folder)
    assert built.data == "random pixels of CIFAR-10's shape"
    return folder


def parts_of(folder: Path) -> Parts:
    opened = open_workload(folder)
    parts = assemble(opened.config)
    parts.network.load(opened.omega)
    return parts


def images_of(parts: Parts, client: int) -> Samples:
    return parts.federation.samples.take(torch.from_numpy(parts.federation.partition.of(client)))


@pytest.mark.parametrize("workload", ["digits", "photographs"])
def test_plain_code_has_the_same_loss(workload: str, request: pytest.FixtureRequest) -> None:
    """On the same views, so that a contestant that does less would be noticed."""
    folder = request.getfixturevalue(workload)
    parts, opened = parts_of(folder), open_workload(folder)
    assert isinstance(parts.algorithm, FedMix)
    images = images_of(parts, 0)
    ours, _, keep = parts.algorithm.loss(parts.network, images, stream(0, "test"))
    family = torch.stack([view.data for view in images.views(5, stream(0, "test"))])
    built, _, sigma = peer_torch.setup(opened)
    method = dict(built.method) | {"lambda_anchor": 0.0}
    theirs, kept = peer_torch.loss_of(built.model, images.data / 255, family.transpose(0, 1) / 255, sigma, method)
    assert kept == int(keep.sum())
    assert theirs.item() == pytest.approx(ours.item(), rel=1e-4)


@pytest.mark.parametrize("workload", ["digits", "photographs"])
def test_the_arithmetic_is_what_is_really_computed(workload: str, request: pytest.FixtureRequest) -> None:
    """FLOP counted while a client trains, by fedfew and by plain code, are those of the formula."""
    folder = request.getfixturevalue(workload)
    parts, opened = parts_of(folder), open_workload(folder)
    channels, size = parts.federation.samples.data.shape[1:3]
    one = cost(parts.network.module, channels, size)
    state = replace(parts.algorithm.start(opened.omega), sigma=opened.sigma)
    site = ClientSite(0, parts.network, images_of(parts, 0), 10)
    with FlopCounterMode(display=False) as counter:
        trained = parts.algorithm.train_client(parts.algorithm.broadcast(state, 0), site, stream(0, "test"))
    images = opened.workload.images
    assert counter.get_total_flops() == pytest.approx(one.shared(5, trained.metrics["coverage"]) * images)

    built, omega, sigma = peer_torch.setup(opened)
    with FlopCounterMode(display=False) as counter:
        peer_torch.train_client(built, 0, omega, sigma)
    assert counter.get_total_flops() == pytest.approx(one.naive(5) * images)


@pytest.mark.slow
def test_the_pool_in_a_process_of_its_own_gives_the_same_coverage_as_inline(digits: Path) -> None:
    result, memory = run_watched(
        "benchmarks.performance.contestant", ["pool", str(digits), "--rounds", "1", "--cores", "2"]
    )
    inline = peer_fedfew.contest(open_workload(digits), 1, threads=1)
    assert result["coverage"] == inline["coverage"]
    assert result["start"] > 0
    assert memory > 100e6  # three processes that have imported torch


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra simulation is not installed")
def test_flowers_simulation_trains_the_same_clients(digits: Path) -> None:
    result, _ = run_watched(
        "benchmarks.performance.contestant", ["flower", str(digits), "--rounds", "1", "--cores", "2"]
    )
    assert len(result["rounds"]) == 1
    assert result["threads"] == 1
    assert 0 <= result["coverage"] <= 1


def test_ratios_and_targets_say_who_is_faster() -> None:
    turn: dict[str, Any] = {"coverage": 0.5, "start": 1.0, "memory": 10**8, "threads": 1}
    result = {
        "pool": [turn | {"rounds": [2.0, 4.0, 3.0], "even": [2.0]}],
        "inline": [turn | {"rounds": [5.0], "even": [4.0]}],
        "torch": [turn | {"rounds": [9.0]}],
    }
    one = Cost(forward=10**9, both=3 * 10**9)
    built = Workload("cifar", images=10, clients=5)
    workload = summary(built, result, one, 5, {"best": 262.5, "core": 131.25})
    assert workload["floor_seconds"] == pytest.approx(50 * 10.5 / 262.5)  # 2 s
    assert ratio(workload, "torch") == pytest.approx(3.0)
    assert ratio(workload, "floor") == pytest.approx(2 / 3)
    assert ratio(workload, "inline") == pytest.approx(2.0)
    assert ratio(workload, "flower") is None
    verdicts = {target["goal"]: target["met"] for target in targets({"cifar": workload})}
    assert verdicts == {3.0: True, 0.7: False, 1.8: True}
    assert workload["contestants"]["torch"]["equivalents"] == pytest.approx(14)
    assert [row[2] for row in rows(workload)[1:]] == ["", "1.67 ×", "3.00 ×", "0.67 ×"]


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
    result = scaling_targets([small, large, few, few | {"peak_mb": 440.0}])
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
