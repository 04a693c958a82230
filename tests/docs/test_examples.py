"""The example notebook and the example script run from end to end."""

import ast
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure
from tests.docs.small import shrink

from fedfew.runs.run import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")  # there is no screen
    shrink(monkeypatch)


def run_cell(code: str, module: ModuleType) -> Any:
    """Run a cell as a notebook does: the value of its last expression is what is shown."""
    tree, shown = ast.parse(code), ast.Name("_shown", ast.Store())
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Assign([shown], last.value)
    vars(module).pop("_shown", None)
    exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), vars(module))
    return vars(module).get("_shown")


def test_the_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells), "kept without outputs"
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    shown = [run_cell("".join(cell["source"]), module) for cell in cells]
    figures = [value for value in shown if isinstance(value, Figure)]
    assert len(figures) == 5 and all(figure._repr_png_().startswith(b"\x89PNG") for figure in figures)  # type: ignore[attr-defined]
    assert set(shown[0]) == {"last", "mean_last_10", "best_by_validation"}
    assert sum(shown[-1].values()) == pytest.approx(1, abs=1e-4)
    assert (tmp_path / "runs/notebook/wrong.png").stat().st_size > 1000


def test_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_methods.py", "--seeds", "2", "--rounds", "1", "--out", "out"])
    script = runpy.run_path(str(EXAMPLES / "compare_methods.py"))
    script["main"]()
    said = capsys.readouterr().out
    assert {line.split()[0] for line in said.splitlines()[1:5]} == set(script["METHODS"])
    assert "±" in said
    splits = {Run.open(tmp_path / f"out/{name}-1").config["dataset.seed"] for name in script["METHODS"]}
    assert splits == {1}
    assert (tmp_path / "out/accuracy.png").stat().st_size > 5000
    before = (tmp_path / "out/fedmix-0/summary.json").stat().st_mtime_ns
    script["main"]()
    assert (tmp_path / "out/fedmix-0/summary.json").stat().st_mtime_ns == before, "a finished run is not repeated"
    assert capsys.readouterr().out == said
