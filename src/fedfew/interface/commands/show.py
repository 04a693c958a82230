"""fedfew report and watch: runs as one HTML file, or live in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.core.errors import FedfewError
from fedfew.interface.console import err, print_json
from fedfew.interface.console import out as console
from fedfew.interface.options import Json
from fedfew.interface.page.serve import serve
from fedfew.interface.report import write_report


def report(
    path: Annotated[Path, typer.Argument(metavar="RUN|FOLDER", help="A run folder, or a folder that contains runs.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write (default: report/index.html in it).")
    ] = None,
    json: Json = False,
) -> None:
    """Write a report: accuracies, bounds, charts, command, config, versions and hashes."""
    written = write_report(path, out)
    if json:
        print_json({"report": str(written), "bytes": written.stat().st_size})
    else:
        console.print(f"report: {written}", soft_wrap=True)


def watch(
    runs: Annotated[
        Path, typer.Argument(metavar="[RUNS]", help="A run folder, or a folder that contains runs.")
    ] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback requires a token.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (default: 8765, or a free one).")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Show runs in the browser as they advance; ends with Ctrl-C."""
    if not runs.is_dir():
        raise FedfewError("E302", str(runs), "is not a folder" if runs.exists() else "does not exist")

    def announce(address: str) -> None:
        if json:
            print_json({"url": address})
        else:
            err.print(f"watching {runs}: [link]{address}[/link]  (Ctrl-C ends)", soft_wrap=True)
        if open_:
            typer.launch(address)

    serve(runs, host, port, announce)
