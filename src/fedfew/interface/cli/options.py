"""Options and arguments that several commands share, short forms for the others, and values a shell can complete."""

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


def flag(name: str, help: str, *parameter: str) -> click.Option:
    """An option without a value."""
    return click.Option([name, *parameter], is_flag=True, help=help)


def path(name: str, metavar: str, help: str, *parameter: str, **more: Any) -> click.Option:
    """An option that is a file or folder."""
    return click.Option([name, *parameter], metavar=metavar, type=PATH, help=help, **more)


def text(name: str, metavar: str, help: str, *parameter: str, **more: Any) -> click.Option:
    """An option that is text."""
    return click.Option([name, *parameter], metavar=metavar, help=help, **more)


def number(name: str, default: float | None, least: float, help: str, *parameter: str, **more: Any) -> click.Option:
    """An option that is a number, whole if its default is."""
    most = more.pop("most", None)
    kind: Any = click.FloatRange if isinstance(default, float) else click.IntRange
    more.setdefault("metavar", "N")
    return click.Option([name, *parameter], default=default, type=kind(least, most), help=help, **more)


def argument(name: str, metavar: str, help: str, kind: Any = PATH, **more: Any) -> click.Argument:
    """An argument, a file or folder unless it is of another kind."""
    return click.Argument([name], metavar=metavar, type=kind, help=help, **more)


def _overrides(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    return dict(parse_set(text) for text in texts)


OVERRIDES = text(
    "--set", "KEY=VALUE", "Override a key of the config, e.g. --set partition.mu=0.1", "overrides", multiple=True,
    callback=_overrides,
)  # fmt: skip
JSON = flag("--json", "Print the result as JSON on the last line.")
CSV = flag("--csv", "Print a CSV table.")
SCALE = text("--scale", "full|laptop", "CIFAR-10: ResNet-9 of width 64 and 55,000 images, or 16 and 11,000.")
NEW_RUN = path("--out", "DIR", "Run folder to create (default: runs/…).")
RUNS_FOLDER = path("--out", "DIR", "Folder of the runs.")
ANYWAY = flag("--anyway", "Continue even if torch or the machine has changed since the start.")
JOBS = number("--jobs", 0, 0, "Runs at a time, one process each; 0: one run at a time on all cores.")
UNTIL = number("--until", 0, 0, "Pause every run after this round; call again to continue.", metavar="ROUND")
MODEL = text("--model", "last|best", "Model after the last round, or with the best validation.", default="last")
ALLOW_CODE = text(
    "--allow-code", "MODULE[:NAME]", "Your own code that the files may name; without this it is refused.", multiple=True
)
CONFIG = argument("config", "PRESET|CONFIG.toml", "A preset or a TOML file.", ConfigName())
RUNS = argument("runs", "RUN…", "Run folders, folders of runs, or archives.", nargs=-1, required=True)
FINISHED = argument("run", "RUN", "Folder of a finished run.")
IMAGES = argument("folder", "FOLDER", "Folder with server/<class>/, clients/<site>/ and test/<class>/.")
