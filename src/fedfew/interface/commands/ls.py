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
            _, state, done, accuracy = run.document, run.state, run.done, run.accuracy("last")
        except FedfewError as fault:
            rows.append({"run": str(path), "state": f"unreadable ({fault.code})"})
            continue
        rows.append(
            {
                "run": str(path),
                "state": state,
                "method": run.method,
                "aggregator": run.aggregator,
                "dataset": run.dataset,
                "seed": run.seed,
                "rounds": done,
                "of": run.planned,
                "accuracy": accuracy,
            }
        )
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
