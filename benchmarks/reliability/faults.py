"""Measures every reliability target: runs each with a time limit and writes docs/understand/security.md.

    python -m benchmarks.reliability.faults [--quick] [ID …]      run (all, or those given) and write the page
    python -m benchmarks.reliability.faults --page                only write the page from earlier results

A target is a script whose last line of output is JSON, or tests. Its exit status says whether it is met;
one that is missed, or exceeds its limit, is recorded as such. ``--quick`` uses smaller counts, and the
page shows the command that was actually run.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.machine import machine
from benchmarks.reliability.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "faults.json", ROOT / "docs" / "understand" / "security.md"
BEGIN, END = "<!-- begin targets -->", "<!-- end targets -->"
Measured = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command: met, missed or out of time, its figure in a line, and the seconds it took."""

    state: str
    figure: str
    seconds: float


def run(words: list[str], limit: float) -> Outcome:
    """Run one target in its own process group, which is killed as a whole when its time is up."""
    began = monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return Outcome("out of time", f"not done within {limit:.0f} s", monotonic() - began)
    return Outcome("met" if process.returncode == 0 else "missed", figure(output), monotonic() - began)


def figure(output: str) -> str:
    """The figures in a command's output: the JSON, the count of tests, or the last line itself."""
    lines = [line for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("{"):
            return _in_words(json.loads(line))
        if counts := re.findall(r"\d+ (?:passed|failed|skipped|errors?)", line):
            return ", ".join(counts)
    return lines[-1][:200] if lines else "nothing was printed"


def _in_words(result: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name.replace('_', ' ')}: {_in_words(value) if isinstance(value, dict) else json.dumps(value)}"
        for name, value in result.items()
    )


def measure(target: Target, quick: bool) -> Measured:
    """Run a target and return its entry for the page."""
    words = target.quick if quick and target.quick else target.command
    outcome = run(words, target.limit)
    return {
        "state": outcome.state,
        "figure": outcome.figure,
        "command": f"python -m {shlex.join(words)}",
        "seconds": round(outcome.seconds),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": "{processor}, {cores} cores".format(**machine()),
    }


def page(measured: Mapping[str, Measured]) -> str:
    """The table of all targets; those never run are marked."""
    rows = []
    for name, target in TARGETS.items():
        result = measured.get(name)
        cells = ["**not run**", "", f"`python -m {shlex.join(target.command)}`", ""]
        if result:
            state = result["state"] if result["state"] == "met" else f"**{result['state']}**"
            cells = [state, result["figure"], f"`{result['command']}`", f"{result['date']}, {result['seconds']} s"]
        rows.append("| " + " | ".join([name, target.text, *(cell.replace("|", "/") for cell in cells)]) + " |")
    met = sum(result["state"] == "met" for name, result in measured.items() if name in TARGETS)
    machines = sorted({result["machine"] for result in measured.values()})
    head = f"{met} of {len(TARGETS)} targets met. Machine: {'; '.join(machines) or 'none yet'}.\n"
    table = "| | target | result | measured | command | when |\n|---|---|---|---|---|---|\n" + "\n".join(rows)
    return f"{BEGIN}\n{head}\n{table}\n{END}"


def known() -> dict[str, Measured]:
    """All measurements so far."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


def write_page(measured: Mapping[str, Measured], target_page: Path = PAGE) -> None:
    """Put the table between its markers."""
    text = target_page.read_text("utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    target_page.write_text(before + page(measured) + after, "utf-8")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"of: {', '.join(TARGETS)}; without: all")
    parser.add_argument("--quick", action="store_true", help="smaller counts")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    asked = parser.parse_args(words)
    names = asked.ids or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        raise SystemExit(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    for name in [] if asked.page else names:
        result = measure(TARGETS[name], asked.quick)
        sys.stdout.write(f"{name}: {result['state']}; {result['figure']}\n")
        sys.stdout.flush()
        RESULTS.write_text(json.dumps(known() | {name: result}, indent=1) + "\n", "utf-8")
    write_page(known())
    return 0 if all(known()[name]["state"] == "met" for name in names if name in known()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
