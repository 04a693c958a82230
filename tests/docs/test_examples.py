"""The example notebook and script run from end to end, and the container's recipe is sound."""

import json
import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest
from matplotlib.figure import Figure
from tests.docs.blocks import shrink
from tests.interface.fedfew_command import fedfew
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
    assert "Fewer than three seeds" in printed and "no pair" not in printed
    splits = {Run.open(tmp_path / f"out/{name}-1").config.dataset.seed for name in script["METHODS"]}
    assert splits == {1}
    assert (tmp_path / "out/accuracy.png").stat().st_size > 5000
    before = (tmp_path / "out/semifl-0/summary.json").stat().st_mtime_ns
    script["main"]()
    assert (tmp_path / "out/semifl-0/summary.json").stat().st_mtime_ns == before, "a finished run is not repeated"
    assert capsys.readouterr().out == printed


ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Containerfile").read_text("utf-8").splitlines()


def steps() -> list[tuple[str, str]]:
    """Instructions and their arguments."""
    lines = [line for line in LINES if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_it_does_not_run_as_root() -> None:
    words = [word for word, _ in steps()]
    assert words.index("USER") < words.index("ENTRYPOINT")


def test_what_is_copied_and_installed_exists() -> None:
    for word, rest in steps():
        if word == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [install] = [rest for word, rest in steps() if word == "RUN" and "pip install" in rest]
    extras = re.search(r"\.\[([\w,]+)\]", install)
    assert extras and set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert "constraints.txt" in install
    [base] = [rest for word, rest in steps() if word == "FROM"]
    version = re.search(r"python:(\d+\.\d+)", base)
    assert version and version[1] == re.search(r"\d+\.\d+", project["requires-python"])[0]  # type: ignore[index]


def test_what_it_runs_exists(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    commands = {word: json.loads(rest) for word, rest in steps() if word in ("ENTRYPOINT", "CMD")}
    assert commands["ENTRYPOINT"][0] in project["scripts"]
    assert fedfew(capsys, *commands["CMD"]).status == 0
    compose = (ROOT / "compose.yaml").read_text("utf-8")
    for kind in ("server", "client"):
        assert re.search(rf"\bdeploy\W+{kind}\b", compose)
        assert fedfew(capsys, "deploy", kind, "--help").status == 0
    assert "--data" in fedfew(capsys, "deploy", "client", "--help").out
    port = next(rest for word, rest in steps() if word == "EXPOSE")
    assert f"{port}:{port}" in compose
