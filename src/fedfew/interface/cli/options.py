"""Options and arguments that several commands share, and the values a shell can complete."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedfew.config.files import parse_set, presets
from fedfew.core.errors import CODES

PATH = click.Path(path_type=Path)


class ConfigName(click.ParamType[str]):
    """A preset or a TOML file; the shell completes presets, or else files."""

    name = "config"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = [CompletionItem(name, help=about) for name, about in presets().items() if name.startswith(incomplete)]
        return known or [CompletionItem(incomplete, type="file")]


class ErrorCode(click.ParamType[str]):
    """The code of an error."""

    name = "code"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = {code: entry.title for code, entry in CODES.items() if code.startswith(incomplete.upper())}
        return [CompletionItem(code, help=title) for code, title in known.items()]


Decorator = Callable[[Any], Any]


def flag(name: str, help: str, *parameter: str) -> Decorator:
    """An option without a value."""
    return click.option(name, *parameter, is_flag=True, help=help)


def path(name: str, metavar: str, help: str) -> Decorator:
    """An option that is a file or folder."""
    return click.option(name, metavar=metavar, type=PATH, help=help)


def place(name: str, metavar: str, help: str) -> Decorator:
    """An argument that is a file or folder."""
    return click.argument(name, metavar=metavar, type=PATH, help=help)


def _overrides(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    return dict(parse_set(text) for text in texts)


overrides = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, callback=_overrides,
    help="Override a key of the config, e.g. --set partition.mu=0.1",
)  # fmt: skip
as_json = flag("--json", "Print the result as JSON on the last line.")
scale = click.option(
    "--scale", metavar="full|laptop", help="CIFAR-10: ResNet-9 of width 64 and 55,000 images, or 16 and 11,000."
)
new_run = path("--out", "DIR", "Run folder to create (default: runs/…).")
runs_folder = path("--out", "DIR", "Folder of the runs.")
anyway = flag("--anyway", "Continue even if torch or the machine has changed since the start.")
jobs = click.option(
    "--jobs", default=0, type=click.IntRange(min=0),
    help="Runs at a time, one process each; 0: one run at a time on all cores.",
)  # fmt: skip
until = click.option(
    "--until", metavar="ROUND", default=0, type=click.IntRange(min=0),
    help="Pause every run after this round; call again to continue.",
)  # fmt: skip
seeds = click.option("--seeds", default=1, type=click.IntRange(min=1), help="Repeat with this many seeds.")
model = click.option(
    "--model", metavar="last|best", default="last", help="Model after the last round, or with the best validation."
)
allow_code = click.option(
    "--allow-code", metavar="MODULE[:NAME]", multiple=True,
    help="Your own code that the files may name; without this it is refused.",
)  # fmt: skip
as_csv = flag("--csv", "Print a CSV table.")

config = click.argument("config", metavar="PRESET|CONFIG.toml", type=ConfigName(), help="A preset or a TOML file.")
runs = click.argument(
    "runs", metavar="RUN…", nargs=-1, required=True, type=PATH, help="Run folders, folders of runs, or archives."
)
finished = place("run", "RUN", "Folder of a finished run.")
images = place("folder", "FOLDER", "Folder with server/<class>/, clients/<site>/ and test/<class>/.")
