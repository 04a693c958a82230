"""docs/understand/performance.md is what the kept results say, and says so where there are none."""

from pathlib import Path

from benchmarks.performance.page import kept
from benchmarks.performance.peers_table import targets
from benchmarks.performance.plots import draw
from benchmarks.performance.text import COMMANDS, page_text

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_kept_results_say() -> None:
    page = (ROOT / "docs" / "understand" / "performance.md").read_text("utf-8")
    assert page == page_text(kept()), "run `python -m benchmarks.performance.page docs/understand/performance.md`"
    assert "Not measured yet" not in page
    assert page.index("## Against the targets") < page.index("## Against plain PyTorch")


def test_without_results_the_page_names_the_commands_and_no_numbers() -> None:
    page = page_text({})
    for command in COMMANDS.values():
        assert f"Not measured yet: `{command}`" in page
    assert "×" not in page.partition("## Where")[0]


def test_misses_are_told() -> None:
    results = kept()
    workloads = results["peers"]["workloads"]
    for kind, seconds in {"pool": 2.0, "torch": 5.0, "flower": 3.0}.items():
        workloads["cifar"]["contestants"][kind]["seconds"] = seconds
    results["peers"]["targets"] = targets(workloads)
    page = page_text(results)
    assert "| cifar: pool against plain PyTorch | ≥ 2 | 2.50 | met |" in page
    assert "| cifar: pool against Flower's simulation | ≥ 2 | 1.50 | **missed** |" in page


def test_a_plot_for_each_result(tmp_path: Path) -> None:
    written = draw(kept(), tmp_path)
    assert [path.name for path in written] == ["peers.svg", "phases.svg", "scaling.svg"]
    assert all(path.read_text("utf-8").count("<path") > 10 for path in written)
