"""fedfew ls: the runs below a folder, and the presets."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedfew.interface.options import Json


def register(app: typer.Typer) -> None:
    app.command("ls")(ls)
    app.command("presets")(presets)


def ls(
    folder: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"), json: Json = False
) -> None:
    """List runs with their state and accuracy."""
    from rich.table import Table

    from fedfew.core.errors import FedfewError
    from fedfew.interface.console import out, percent, print_json
    from fedfew.interface.report.facts import find_runs
    from fedfew.runs.run import Run

    rows: list[dict[str, Any]] = []
    for path in find_runs(folder):
        try:
            run = Run.open(path)
            records, config = run.rounds, run.config
        except FedfewError as fault:
            rows.append({"run": str(path), "state": f"unreadable ({fault.code})"})
            continue
        rows.append(
            {
                "run": str(path),
                "state": "finished" if run.finished else "open",
                "method": config["method.name"],
                "aggregator": config["aggregator.name"],
                "dataset": config["dataset.name"],
                "seed": config["seed"],
                "rounds": len(records),
                "of": config["rounds"],
                "accuracy": records[-1]["accuracy"] if records else None,
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


def presets(
    name: Annotated[str, typer.Argument(metavar="[PRESET|CONFIG.toml]", help="Show this one whole, as TOML.")] = "",
    json: Json = False,
) -> None:
    """List the presets; or show one whole, with its base and every default filled in."""
    from fedfew.config.files import presets as known
    from fedfew.interface.console import out, print_json

    if name:
        from fedfew.config.schema import load
        from fedfew.core import toml

        document = load(name).document
        if json:
            print_json(document)
        else:
            typer.echo(toml.dumps(document), nl=False)
        return
    found = known()
    if json:
        print_json({"presets": found})
        return
    for preset, about in found.items():
        out.print(f"[bold]{preset:22}[/] {about}", soft_wrap=True)
