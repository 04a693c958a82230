"""The example notebook and the example script run from end to end."""

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest
from matplotlib.figure import Figure
from tests.docs.blocks import shrink
from tools.notebook import code_cells, run_cell

from fedfew.runs.run import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")  # there is no screen
    shrink(monkeypatch)


def test_the_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = code_cells(json.loads((EXAMPLES / "quickstart.ipynb").read_text("utf-8")))
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    shown = [run_cell("".join(cell["source"]), module) for cell in cells]
    figures = [value for value in shown if isinstance(value, Figure)]
    assert len(figures) == 5 and all(figure._repr_png_().startswith(b"\x89PNG") for figure in figures)  # type: ignore[attr-defined]
    assert shown[0].method == "fedfew"
    assert {row.key["method.name"] for row in shown[1].rows} == {"fedfew", "fedmix", "server-only"}
    assert sum(shown[-1].values()) == pytest.approx(1, abs=1e-4)
    assert (tmp_path / "runs/notebook/wrong.png").stat().st_size > 1000
    again = run_cell("".join(cells[0]["source"]), module)
    assert again.summary == shown[0].summary, "a cell that is run again gives the run back"


def test_the_notebook_has_its_outputs() -> None:
    cells = code_cells(json.loads((EXAMPLES / "quickstart.ipynb").read_text("utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run `make notebook`"
    pictures = [output for cell in cells for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(pictures) == 5
    [table] = [
        cell["outputs"][-1]["data"]["text/plain"] for cell in cells if "fedfew.compare" in "".join(cell["source"])
    ]
    assert "server-only" in "".join(table) and "fedfew" in "".join(table)


def test_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_methods.py", "--seeds", "2", "--rounds", "1", "--out", "out"])
    script = runpy.run_path(str(EXAMPLES / "compare_methods.py"))
    script["main"]()
    printed = capsys.readouterr().out
    assert {line.split()[0].removesuffix("*") for line in printed.splitlines()[1:5]} == set(script["METHODS"])
    assert "fedfew" in script["METHODS"]
    assert "±" in printed and "no pair" not in printed
    splits = {Run.open(tmp_path / f"out/{name}-1").config.dataset.seed for name in script["METHODS"]}
    assert splits == {1}
    assert (tmp_path / "out/accuracy.png").stat().st_size > 5000
    before = (tmp_path / "out/semifl-0/summary.json").stat().st_mtime_ns
    script["main"]()
    assert (tmp_path / "out/semifl-0/summary.json").stat().st_mtime_ns == before, "a finished run is not repeated"
    assert capsys.readouterr().out == printed
