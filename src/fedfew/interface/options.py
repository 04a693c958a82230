"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config, e.g. --set partition.mu=0.1"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale", metavar="full|laptop", help="CIFAR-10: ResNet-9 of width 64 and 55,000 images, or 16 and 11,000."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder to create (default: runs/…).")]


def overrides(given: list[str] | None) -> dict[str, Any]:
    """The --set options as a dict."""
    from fedfew.config.schema import parse_set

    return dict(parse_set(text) for text in given or [])


def scaled_overrides(config: str, scale: str | None, given: list[str] | None) -> dict[str, Any]:
    """The scale's overrides, then the --set options; a scale that changes nothing is told."""
    from fedfew.config.scale import scaled
    from fedfew.interface.console import err

    changes, note = scaled(config, scale, overrides(given))
    if note:
        err.print(note, markup=False, soft_wrap=True)
    return changes
