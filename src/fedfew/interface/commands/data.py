"""fedfew data: fetch datasets once, and see what is here."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.interface.options import Json

app = typer.Typer(help="Fetch datasets once, and see what is here.", no_args_is_help=True)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10, mnist or fashion-mnist.")],
    source: Annotated[Path | None, typer.Option("--from", metavar="PATH", help="A local archive or folder.")] = None,
    json: Json = False,
) -> None:
    """Fetch a dataset from a local copy or from the first of its sources that answers."""
    from fedfew.data.sources import fetch as bring
    from fedfew.interface.console import err, out, print_json

    path = bring(name, source, lambda line: err.print(line, markup=False, soft_wrap=True))
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        out.print(f"{name} is ready in {path}", soft_wrap=True)


@app.command("ls")
def ls(json: Json = False) -> None:
    """List the datasets, fetched or not."""
    from rich.table import Table

    from fedfew.data.datasets import inventory
    from fedfew.interface.console import out, print_json

    entries = inventory()
    if json:
        print_json(
            {
                "datasets": [
                    {
                        "name": entry.name,
                        "fetched": entry.fetched,
                        "images": entry.images,
                        "shape": list(entry.shape),
                        "classes": len(entry.classes),
                        "path": str(entry.path),
                    }
                    for entry in entries
                ]
            }
        )
        return
    table = Table("dataset", "here", "images", "shape", "classes", "where")
    for entry in entries:
        shape = "×".join(map(str, entry.shape))
        here = "yes" if entry.fetched else f"fedfew data fetch {entry.name}"
        table.add_row(entry.name, here, f"{entry.images:,}", shape, str(len(entry.classes)), str(entry.path))
    out.print(table)
