"""docs/understand/performance.md is what the kept results say, and says so where there are none."""

from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.performance.page import kept
from benchmarks.performance.peers import summary
from benchmarks.performance.peers_table import targets
from benchmarks.performance.phases import KINDS
from benchmarks.performance.plots import draw
from benchmarks.performance.text import COMMANDS, page_text
from benchmarks.performance.workloads import CIFAR, Cost

ROOT = Path(__file__).parents[2]


def some_results() -> dict[str, Any]:
    """Results of the right form whose ratios are known: the pool takes 2 s, plain PyTorch 5."""
    turn: dict[str, Any] = {"coverage": 0.5, "start": 1.0, "memory": 10**8, "threads": 1}
    result = {
        "pool": [turn | {"rounds": [2.0, 2.2, 1.9], "even": [1.6]}],
        "inline": [turn | {"rounds": [3.9], "even": [3.1]}],
        "torch": [turn | {"rounds": [5.0]}],
        "flower": [turn | {"rounds": [3.0]}],
    }
    workload = summary(CIFAR, result, Cost(10**9, 3 * 10**9), 5, {"best": 4000.0, "core": 2000.0})
    about, workloads = machine() | {"busy_after": 0.02}, {"cifar": workload}
    phases = {"server": 0.5, "clients": 2.0, "aggregate": 0.01, "evaluate": 0.1, "checkpoint": 0.05, "round": 2.7}
    client = {"seconds": dict.fromkeys(KINDS, 0.2), "wall": 1.4, "coverage": 0.5}
    client |= {"wall_without_profiler": 1.3, "gflops": 50.0, "gflops_in_convolutions": 60.0}
    inside = {"data": "", "clients": 5, "images": 110, "width": 64, "phases": phases, "client": client}
    row = {"family": "K", "K": 100, "m": 10, "workers": 0, "ready": 1.0, "round": 0.1, "around": 0.003, "files": 0.02}
    row |= {"seconds": phases, "peak_mb": 300.0}
    rows = [
        row | {"family": family, "workers": n, "K": k}
        for family in ("K", "m", "workers")
        for n, k in ((0, 100), (2, 9999))
    ]
    each = {"float32": 0.6, "bfloat16": 0.4, "ratio": 1.5}
    network = {"width": 16, "images": 64, "forward": each, "forward and backward": each}
    return {
        "precision": {"machine": about, "networks": [network], "minutes": 1.0},
        "peers": {"machine": about, "workloads": workloads, "targets": targets(workloads), "minutes": 9.0},
        "phases": {"machine": about, "core_gflops": 80.0, "workloads": {"cifar": inside}, "minutes": 2.0},
        "scaling": {"machine": about, "rows": rows, "targets": [], "minutes": 2.0},
    }


def test_the_page_is_what_the_kept_results_say() -> None:
    page = (ROOT / "docs" / "understand" / "performance.md").read_text("utf-8")
    assert page == page_text(kept()), "run `python -m benchmarks.performance.page docs/understand/performance.md`"


def test_without_results_the_page_names_the_commands_and_no_numbers() -> None:
    page = page_text({})
    for command in COMMANDS.values():
        assert f"Not measured yet: `{command}`" in page
    assert "×" not in page.partition("## Where")[0]


def test_ratios_stand_first_and_misses_are_told() -> None:
    page = page_text(some_results())
    assert page.index("## Against the targets") < page.index("## Against plain PyTorch")
    assert "| cifar: pool against plain PyTorch | ≥ 2 | 2.50 | met |" in page
    assert "| cifar: pool against Flower's simulation | ≥ 2 | 1.50 | **missed** |" in page
    assert "could reach at most 83%" in page or machine()["cores"] != 2
    assert "| 16 | forward | 0.60 ms | 0.40 ms | 1.50 × |" in page
    assert "Not measured yet" not in page


def test_a_plot_for_each_result(tmp_path: Path) -> None:
    written = draw(some_results(), tmp_path)
    assert [path.name for path in written] == ["peers.svg", "phases.svg", "scaling.svg"]
    assert all(path.read_text("utf-8").count("<path") > 10 for path in written)
