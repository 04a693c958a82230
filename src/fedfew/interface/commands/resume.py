"""fedfew resume: go on with an interrupted run from its newest whole checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.interface import options
from fedfew.interface.options import Json, Set


def register(app: typer.Typer) -> None:
    app.command("resume")(resume)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    set_: Set = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Go on even if torch or the machine is another.")] = False,
    json: Json = False,
) -> None:
    """Go on with a run; the result is the same, bit for bit, as if it had not been interrupted."""
    from fedfew.interface.commands.run import finish
    from fedfew.interface.console import warn
    from fedfew.runs.session import reopen

    finish(reopen(run, warn, options.overrides(set_), anyway=anyway), json)
