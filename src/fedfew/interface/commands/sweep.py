"""fedfew sweep: a config over a grid of values, or searched with optuna, as runs in one resumable folder."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfew.core.errors import FedfewError
from fedfew.interface.batch import Tally, follow_all, run_all
from fedfew.interface.commands.run import scaled_overrides
from fedfew.interface.console import out, percent, print_json, warn
from fedfew.interface.options import Anyway, Config, Jobs, Json, Scale, Set, Until
from fedfew.runs.run import Run
from fedfew.studies.sweep import Cell, Event, cells_of, index
from fedfew.studies.sweep_jobs import check_jobs
from fedfew.studies.sweep_search import best_validation, search, space_of


def sweep(
    config: Config,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=A,B,…", help="Values of a key; give several for a grid.")
    ] = None,
    optuna: Annotated[int, typer.Option(min=0, metavar="N", help="Search with N trials instead of all values.")] = 0,
    range_: Annotated[
        list[str] | None, typer.Option("--range", metavar="KEY=LOW:HIGH[:log]", help="optuna: an interval to search.")
    ] = None,
    scale: Scale = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the runs.")] = None,
    jobs: Jobs = 0,
    until: Until = 0,
    anyway: Anyway = False,
    json: Json = False,
) -> None:
    """Run every combination of the grid's values; finished runs are kept, interrupted ones continued."""
    base = scaled_overrides(config, scale, set_)
    folder = out or Path("runs") / f"sweep-{Path(config).stem}"
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    if jobs:
        check_jobs(jobs)
    if optuna:
        if until:
            raise FedfewError("E113", "--until", "a search judges finished trials", "Use --set rounds=N instead")
        if jobs > 1:
            raise FedfewError("E113", "--jobs", "trials come one after the other, each chosen by those before", "")
        tally, cells = _search(config, base, (grid or [], range_ or []), optuna, folder, anyway, command)
    else:
        if range_:
            raise FedfewError("E113", "--range", "is for a search", "Add --optuna N, or give values with --grid")
        if not grid:
            raise FedfewError("E103", "--grid", "there is nothing to vary", "Write e.g. --grid partition.mu=0.1,1,10")
        cells = cells_of(config, base, grid)
        tally = run_all(cells, folder, jobs=jobs, until=until, anyway=anyway, command=command)
    _show(tally, cells, folder, json)


def _search(
    config: str,
    base: dict[str, Any],
    varied: tuple[list[str], list[str]],
    trials: int,
    folder: Path,
    anyway: bool,
    command: str,
) -> tuple[Tally, list[Cell]]:
    seen: dict[str, Cell] = {}
    events = search(config, base, space_of(*varied), trials, folder, warn, anyway=anyway, command=command)

    def noted() -> Iterator[Event]:
        for event in events:
            seen[event.cell.identity] = event.cell
            yield event

    return follow_all(noted(), [], command), list(seen.values())


def _show(tally: Tally, cells: list[Cell], folder: Path, json: bool) -> None:
    known = index(folder)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        path = known.get(cell.identity)
        run = Run.open(path) if path else None
        rows.append(
            {
                "run": str(path) if path else None,
                "cell": cell.name,
                "rounds": run.done if run else 0,
                "finished": bool(run and run.finished),
                "accuracy": run.accuracy() if run else None,
                "best_validation": best_validation(path) if path and run and run.done else None,
            }
        )
    rows.sort(key=lambda row: -(row["best_validation"] or 0.0))
    if json:
        print_json({"folder": str(folder), "runs": tally.as_json(), "cells": rows, "best": rows[0] if rows else None})
        return
    table = Table("run", "rounds", "best validation", "accuracy", title="by validation accuracy, best first")
    for row in rows:
        state = str(row["rounds"]) if row["finished"] else f"{row['rounds']}, not finished"
        table.add_row(row["cell"], state, percent(row["best_validation"]), percent(row["accuracy"]))
    out.print(table)
    out.print(f"folder: {folder}; `fedfew compare {folder}` puts the seeds together", soft_wrap=True)
