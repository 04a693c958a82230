"""The runner of the reliability targets: figures read from what a command prints, misses and time limits reported."""

from pathlib import Path

import pytest
from benchmarks.reliability import faults
from benchmarks.reliability.targets import TARGETS

ROOT = Path(__file__).parents[2]


def test_every_target_names_something_that_exists() -> None:
    for name, target in TARGETS.items():
        module, *words = target.command
        if module == "pytest":
            places = [word for word in words if word.startswith("tests/")]
            assert places and all((ROOT / page).exists() for page in places), name
        else:
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), name


@pytest.mark.parametrize(
    ("output", "figure"),
    [
        ('noise\n{"kills": 50, "same_hash": true}\n', "kills: 50; same hash: true"),
        ('{"sweep": {"kills": 2}, "x": [1]}', "sweep: kills: 2; x: [1]"),
        ("....\n4 passed, 1 skipped in 3.2s\n", "4 passed, 1 skipped"),
        ("1 failed, 2 passed in 1s\n", "1 failed, 2 passed"),
        ("", "nothing was printed"),
        ("Traceback\nValueError: no", "ValueError: no"),
    ],
)
def test_the_figure_is_what_the_command_said_last(output: str, figure: str) -> None:
    assert faults.figure(output) == figure


def test_misses_and_time_limits_are_told_from_success() -> None:
    assert faults.run(["this"], 60).state == "met"
    assert faults.run(["no_such_module_here"], 60).state == "missed"
    late = faults.run(["http.server", "--bind", "127.0.0.1", "0"], 0.5)
    assert (late.state, late.figure) == ("out of time", "not done within 0 s")


def test_the_page_says_what_was_missed_and_what_was_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Head\n\n{faults.BEGIN}\nof last year\n{faults.END}\n\nTail\n", "utf-8")
    result = {"state": "missed", "figure": "kills: 5", "command": "python -m x", "seconds": 3}
    result |= {"date": "d", "machine": "m"}
    faults.write_page({"R1": result}, page)
    text = page.read_text("utf-8")
    assert text.startswith("# Head\n") and text.endswith("Tail\n") and "last year" not in text
    assert "0 of" in text
    assert "| **missed** | kills: 5 | `python -m x` | d, 3 s |" in text
    assert text.count("**not run**") == len(TARGETS) - 1
