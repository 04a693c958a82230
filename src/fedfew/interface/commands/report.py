"""fedfew report: a run or a folder of runs as one HTML file that needs no network."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.interface.options import Json


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    path: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run folder, or a folder with runs below it.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write (default: report/index.html in it).")
    ] = None,
    json: Json = False,
) -> None:
    """Write a report: accuracies beside the bounds, charts, command, config, versions and hashes."""
    from fedfew.interface.console import out as console
    from fedfew.interface.console import print_json
    from fedfew.interface.report import write_report

    written = write_report(path, out)
    if json:
        print_json({"report": str(written), "bytes": written.stat().st_size})
    else:
        console.print(f"report: {written}", soft_wrap=True)
