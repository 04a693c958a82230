"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedfew.config.files import parse_set

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
Config = Annotated[str, typer.Argument(metavar="PRESET|CONFIG.toml", help="A preset's name or a TOML file.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that contain runs.")]
Finished = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
Model = Annotated[
    str, typer.Option("--model", metavar="last|best", help="Model after the last round, or with the best validation.")
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Continue even if torch or the machine has changed since the start.")
]
Jobs = Annotated[int, typer.Option(min=0, help="Runs at a time, one process each; 0: one run at a time on all cores.")]
Until = Annotated[
    int, typer.Option(min=0, metavar="ROUND", help="Pause every run after this round; call again to continue.")
]


def overrides(given: list[str] | None) -> dict[str, Any]:
    """The --set options as a dict."""
    return dict(parse_set(text) for text in given or [])
