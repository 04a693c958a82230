"""One display of progress, in three places: a terminal's bar, a log file's lines, a notebook's line of HTML."""

import io
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedfew
from fedfew.interface import console
from fedfew.interface import progress as displays
from fedfew.interface.progress import counting

SMALL: dict[str, Any] = {"rounds": 2, "clients": 4, "labels": 20, "fleet.kind": "inline", "dataset.unlabeled": 200}
SMALL |= {"dataset.test": 50, "dataset.validation": 0, "server.epochs": 1, "client.epochs": 1}
Write = Callable[[], str]


@pytest.fixture(params=["terminal", "log", "notebook"])
def written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    """What appears in a place, as text."""
    file, lines = io.StringIO(), list[str]()
    own = Console(file=file, force_terminal=request.param == "terminal", width=100, highlight=False)
    own.is_jupyter = request.param == "notebook"
    for module in (console, displays):
        monkeypatch.setattr(module, "err", own)

    class Handle:
        def update(self, line: Any) -> None:
            lines.append(line._repr_html_())

    def display(line: Any, display_id: bool = False) -> Handle:
        if display_id:  # the others are messages
            lines.append(line._repr_html_())
        return Handle()

    if request.param == "notebook":
        parts = types.ModuleType("IPython.display")
        parts.display = display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", parts)
        return lambda: "\n".join(lines)
    return file.getvalue


def test_a_run_shows_its_phases(written: Write, tmp_path: Path) -> None:
    fedfew.run("quick", SMALL | {"method.name": "semifl", "method.warmup": 3}, out=tmp_path / "run")
    seen = written()
    assert "warm-up" in seen and seen.index("warm-up") < seen.rindex("accuracy")
    assert "3" in seen[seen.index("warm-up") :]
    assert ("2/2" in seen) or ("2 of 2 rounds" in seen)


def test_a_sweep_shows_all_its_rounds(written: Write, tmp_path: Path) -> None:
    fedfew.sweep("quick", {"seed": [0, 1]}, SMALL, out=tmp_path / "runs")
    seen = written()
    assert ("done" in seen) or ("4 of 4 rounds" in seen)


def test_reading_many_images_counts_them(written: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (displays.Progress, displays._Cell):
        monkeypatch.setattr(kind, "SECONDS", -1.0)
    with counting("reading images") as report:
        for done in range(1, 4):
            report(done, 3)
    assert "reading images" in written()
    assert ("3/3" in written()) or ("3 of 3" in written())


@pytest.mark.parametrize("written", ["log"], indirect=True)
def test_a_log_file_has_a_line_now_and_then(written: Write) -> None:
    with counting("reading images") as report:
        for done in range(1, 1001):
            report(done, 1000)
    assert written() == ""


@pytest.mark.parametrize("written", ["notebook"], indirect=True)
def test_what_a_notebook_shows_is_escaped(written: Write) -> None:
    with counting("<script>") as report:
        report(1, 1)
    assert "<script>" not in written() and "&lt;script&gt;" in written()


def test_clients_that_change_nothing_are_remarked_on() -> None:
    record: Any = {"round": 1, "rejected": [], "missing": [], "skipped": False, "coverage": 0.0}
    idle = [{"client": 0, "norm": 0.0}, {"client": 3, "norm": 0.0}]
    guard: Any = types.SimpleNamespace(look=lambda record: ())
    said = list(displays._remarks(record | {"updates": idle}, guard))
    assert said == ["[yellow]round 1: no client changed the model; none of their pseudo-labels was confident enough[/]"]
    for silent in ({"updates": [{"client": 0}]}, {"updates": idle, "round": 2}, {"updates": [*idle, {"norm": 0.1}]}):
        assert not list(displays._remarks(record | silent, guard))
