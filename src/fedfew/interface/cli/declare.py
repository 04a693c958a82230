"""How commands are declared: groups, commands that are imported when they run, and the options that several share."""

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedfew.config.files import parse_set, presets
from fedfew.core.errors import CODES
from fedfew.interface.console import print_json

PATH = click.Path(path_type=Path)
SETTING = "set__"
"""Begins the names of options that stand for a key of the config."""


class Name(click.ParamType[str]):
    """A name that the shell completes, or else a file."""

    def __init__(self, name: str, known: Callable[[], Mapping[str, str]]) -> None:
        self.name, self._known = name, known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = self._known().items()
        items = [
            CompletionItem(name, help=about) for name, about in known if name.lower().startswith(incomplete.lower())
        ]
        return items or [CompletionItem(incomplete, type="file")]


CONFIG_NAME = Name("config", presets)
ERROR_CODE = Name("code", lambda: {code: entry.title for code, entry in CODES.items()})


def flag(name: str, help: str, *parameter: str) -> click.Option:
    return click.Option([name, *parameter], is_flag=True, help=help)


def path(name: str, metavar: str, help: str, *parameter: str, **more: Any) -> click.Option:
    return click.Option([name, *parameter], metavar=metavar, type=PATH, help=help, **more)


def text(name: str, metavar: str, help: str, *parameter: str, **more: Any) -> click.Option:
    return click.Option([name, *parameter], metavar=metavar, help=help, **more)


def setting(name: str, metavar: str, help: str, key: str) -> click.Option:
    """A short way to write ``--set key=…``, next to OVERRIDES."""
    return text(name, metavar, help, SETTING + key.replace(".", "__"), default="")


def number(name: str, default: float | None, least: float, help: str, *parameter: str, **more: Any) -> click.Option:
    """An option that is a number, whole if its default is."""
    most = more.pop("most", None)
    kind: Any = click.FloatRange if isinstance(default, float) else click.IntRange
    more.setdefault("metavar", "N")
    return click.Option([name, *parameter], default=default, type=kind(least, most), help=help, **more)


def argument(name: str, metavar: str, help: str, kind: Any = PATH, **more: Any) -> click.Argument:
    """An argument, a file or folder unless it is of another kind."""
    return click.Argument([name], metavar=metavar, type=kind, help=help, **more)


OVERRIDES = text(
    "--set", "KEY=VALUE", "Override a key of the config, e.g. --set partition.mu=0.1", "overrides", multiple=True,
    callback=lambda ctx, param, texts: dict(map(parse_set, texts)),
)  # fmt: skip
JSON = flag("--json", "Print the result as JSON on the last line.")
NEW_RUN = path("--out", "DIR", "Run folder to create (default: runs/…).")
ANYWAY = flag("--anyway", "Continue even if torch or the machine has changed since the start.")
ALLOW_CODE = text(
    "--allow-code", "MODULE[:NAME]", "Your own code that the files may name; without this it is refused.", multiple=True
)
CONFIG = argument("config", "PRESET|CONFIG.toml", "A preset or a TOML file.", CONFIG_NAME)


def execute(target: str, **options: Any) -> None:
    """Call ``module:function`` of fedfew.interface.commands: with torch and all that only this command needs."""
    module, _, function = target.partition(":")
    settings = {name: options.pop(name) for name in list(options) if name.startswith(SETTING)}
    if settings:
        keys = {name.removeprefix(SETTING).replace("__", "."): value for name, value in settings.items() if value}
        options["overrides"] = options.get("overrides", {}) | keys
    if module == "deploy":
        from fedfew.core.extras import require  # noqa: PLC0415 - other commands need no network

        require("flower", "fedfew deploy")
    work = getattr(import_module(f"fedfew.interface.commands.{module}"), function)
    json = options["json"] if "json" in signature(work).parameters else options.pop("json", False)
    if answer := work(**options):
        result, show = answer
        print_json(result) if json else show()


class Command(click.Command):
    """A command that says where an unknown option belongs: most are keys of the config."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            hint = self._hint(error.option_name, args)
            raise click.UsageError(f"No such option: {error.option_name}.{hint}", ctx) from None

    def _hint(self, option: str, args: list[str]) -> str:
        known = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        if close := difflib.get_close_matches(option, known, 1, cutoff=0.75):
            return f" Did you mean {close[0]}?"
        if "--set" not in known or not option.startswith("--"):
            return ""
        words = " ".join(args).replace(f"{option} ", f"{option}=").split()
        value = next((word.partition("=")[2] for word in words if word.startswith(f"{option}=")), "VALUE")
        key = _key_like(option.removeprefix("--").replace("-", "_"))
        if not key:
            return " Keys of the config are given with --set KEY=VALUE."
        return f" Keys of the config are given with --set; did you mean --set {key}={value}?"


def _key_like(word: str) -> str:
    """The config key that was probably meant: by its full name, its last part, its section, or a close match."""
    from fedfew.config.tree import NAMED, SECTIONS, settings_for  # noqa: PLC0415 - only after a mistake

    meant = {section: f"{section}.{NAMED[section][0]}" for section in NAMED}
    for section in ("", *SECTIONS):
        usual = NAMED[section][2] if section in NAMED else ""
        names = settings_for(section, usual) if usual != "auto" else {}
        keys = {name: f"{section}.{name}".lstrip(".") for name in names}
        meant = keys | meant if section else meant | keys  # keys without a section come first, then by section
        meant |= {key: key for key in keys.values()}
    close = difflib.get_close_matches(word, meant, 1, cutoff=0.75)
    return meant[word] if word in meant else meant[close[0]] if close else ""


class Group(click.Group):
    """Commands in the order of their declaration, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def command(target: str, help: str, *params: click.Parameter, name: str = "") -> Command:
    """A command by the ``module:function`` that does its work; the help text begins with a short sentence.

    It has --json, but for those of deploy, some of which give no result.
    """
    module, _, function = target.partition(":")
    all_params = [*params, *(() if module == "deploy" else (JSON,))]
    return Command(name or function.replace("_", "-"), params=all_params, help=help, callback=partial(execute, target))


def group(name: str, help: str, *commands: click.Command, **settings: Any) -> Group:
    return Group(name, {str(part.name): part for part in commands}, help=help, **settings)
