"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config, e.g. --set partition.mu=0.1"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder to create (default: runs/…).")]


def overrides(given: list[str] | None) -> dict[str, Any]:
    """The --set options as a dict."""
    from fedfew.experiment.config import parse_set

    return dict(parse_set(text) for text in given or [])
