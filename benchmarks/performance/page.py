"""The page docs/understand/performance.md with its plots, written from the saved results alone.

    python -m benchmarks.performance.page docs/understand/performance.md

The benchmarks call this themselves with ``--page``; a missing result is named with its command.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import BUSY, ROOT, busy, machine, progress
from benchmarks.performance.text import COMMANDS, page_text

RAW = argparse.RawDescriptionHelpFormatter
RESULTS = ROOT / "benchmarks" / "results" / "performance.json"


def with_output(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser.add_argument("--json", action="store_true", help="print one JSON line last")
    parser.add_argument("--page", type=Path, help=f"save the result in {RESULTS.name} and rewrite this page")
    parser.add_argument("--anyway", action="store_true", help="save the result even if other work runs")
    return parser


def quiet_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """The machine; stops before measuring if the result is to be published and other work runs."""
    about = machine()
    if about["busy_before"] > BUSY:
        share = f"{about['busy_before']:.0%}"
        if arguments.page and not arguments.anyway:
            raise SystemExit(f"Other work takes {share} of the cores. Wait until it is done, or add --anyway.")
        progress(f"Other work takes {share} of the cores: the times will be unreliable.")
    return about


def finish(name: str, result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Save and print the result, as requested; other work that started meanwhile is noted too."""
    about = result["machine"]
    about["busy_after"] = round(max(busy(), about.get("busy_after", 0.0)), 3)
    if about["busy_after"] > BUSY:
        progress(f"Other work took up to {about['busy_after']:.0%} of the cores meanwhile: measure again.")
    if arguments.page:
        RESULTS.write_text(json.dumps(kept() | {name: result}, indent=1) + "\n", "utf-8")
        write(arguments.page)
    if arguments.json:
        print(json.dumps(result))


def kept() -> dict[str, Any]:
    """The existing results by benchmark."""
    known: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    return {name: known[name] for name in COMMANDS if name in known}


def write(page: Path) -> None:
    """Write the page and its plots."""
    from benchmarks.performance.plots import draw

    results = kept()
    draw(results, page.parent / page.stem)
    page.write_text(page_text(results), "utf-8")
    progress(f"{page} was written from {', '.join(results) or 'no results'}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("page", type=Path)
    write(options.parse_args().page)
