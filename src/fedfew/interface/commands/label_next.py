"""fedfew label-next: which images of a site a person should label next, and why."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.interface.options import Json


def register(app: typer.Typer) -> None:
    app.command("label-next")(label_next)


def label_next(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    images: Annotated[list[str], typer.Argument(metavar="CLIENTFOLDER…", help="Folders or files to choose from.")],
    count: Annotated[int, typer.Option("-n", min=1, help="How many to choose.")] = 50,
    csv: Annotated[bool, typer.Option("--csv", help="Print a CSV table.")] = False,
    json: Json = False,
) -> None:
    """Choose the images most worth labelling next: uncertain ones, no two alike, with the reason."""
    import csv as tables
    import sys

    from rich.markup import escape
    from rich.table import Column, Table

    from fedfew.core.errors import FedfewError
    from fedfew.inference.label_next import label_next as choose
    from fedfew.interface.console import out, print_json, warn
    from fedfew.interface.reading import counting
    from fedfew.runs.run import Run

    trained = Run.open(run)
    with counting("reading images") as report:
        found = choose(trained, images, count, report)
    for problem in found.problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))
    if json:
        unreadable = [{"image": p.path, "reason": p.reason} for p in found.problems if p.skipped]
        print_json({"run": str(run), "considered": found.considered, "chosen": found.rows, "unreadable": unreadable})
        return
    if csv:
        writer = tables.DictWriter(sys.stdout, list(found.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.rows)
        return
    image = Column("image", overflow="fold")  # the end of a path says which image
    title = f"{len(found.rows)} of {found.considered:,} images"
    table = Table("", image, "reason", title=title, title_justify="left")
    for row in found.rows:
        table.add_row(str(row["rank"]), escape(row["image"]), escape(row["reason"]))
    out.print(table)
