"""fedfew ls: the runs below a folder. No torch needed."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfew.core.errors import FedfewError
from fedfew.interface.console import out, percent, print_json
from fedfew.interface.options import Json
from fedfew.runs.folder import find_runs
from fedfew.runs.run import Run


def ls(
    folder: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"), json: Json = False
) -> None:
    """List runs with their state and accuracy."""
    rows: list[dict[str, Any]] = []
    for path in find_runs(folder):
        try:
            run = Run.open(path)
            row: dict[str, Any] = {
                "state": run.state,
                "method": run.method,
                "aggregator": run.aggregator,
                "dataset": run.dataset,
                "seed": run.seed,
                "rounds": run.done,
                "of": run.planned,
                "accuracy": run.accuracy(),
            }
        except FedfewError as fault:  # a damaged run does not hide the others
            row = {"state": f"unreadable ({fault.code})"}
        rows.append({"run": str(path)} | row)
    if json:
        print_json({"runs": rows})
        return
    table = Table("run", "method", "dataset", "seed", "rounds", "accuracy", "state")
    for row in rows:
        rounds = f"{row['rounds']}/{row['of']}" if "of" in row else ""
        shown = percent(row.get("accuracy"))
        table.add_row(
            row["run"], row.get("method"), row.get("dataset"), str(row.get("seed", "")), rounds, shown, row["state"]
        )
    out.print(table if rows else f"no runs below {folder}")
