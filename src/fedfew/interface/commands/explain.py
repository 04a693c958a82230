"""fedfew explain: what an error code means and how to get out of it."""

import difflib
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(code: Annotated[str, typer.Argument(help="A code such as E104; without it, all are listed.")] = "") -> None:
    """Explain an error code."""
    from fedfew.core.errors import CODES, FedfewError
    from fedfew.interface.console import out

    if not code:
        for name, entry in CODES.items():
            out.print(f"[bold]{name}[/]  {entry.title}")
        return
    found = CODES.get(code.upper())
    if found is None:
        close = difflib.get_close_matches(code.upper(), CODES, 1)
        hint = f"Did you mean {close[0]}?" if close else "`fedfew explain` lists all codes"
        raise FedfewError("E105", "explain", f"there is no code {code!r}", hint)
    out.print(f"[bold]{code.upper()} {found.title}[/]\n{found.cause}\n[green]What to do:[/] {found.remedy}")
