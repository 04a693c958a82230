"""fedfew report and watch: runs as one HTML file, or live in the browser."""

import webbrowser
from pathlib import Path

from fedfew.core.errors import FedfewError
from fedfew.interface.console import Answer, err, print_json, say
from fedfew.interface.page.app import serve
from fedfew.interface.report import write_report


def report(path: Path, out: Path | None) -> Answer:
    written = write_report(path, out)
    return {"report": str(written), "bytes": written.stat().st_size}, lambda: say(f"report: {written}")


def watch(runs: Path, host: str, port: int | None, open_: bool, json: bool) -> None:
    if not runs.is_dir():
        raise FedfewError("E302", str(runs), "is not a folder" if runs.exists() else "does not exist")

    def announce(address: str) -> None:
        if json:
            print_json({"url": address})
        else:
            err.print(f"watching {runs}: [link]{address}[/link]  (Ctrl-C ends)", soft_wrap=True)
        if open_:
            webbrowser.open(address)

    serve(runs, host, port, announce)
