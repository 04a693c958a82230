"""A group of commands whose modules are imported only when one of their commands is run."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, get_type_hints

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from fedfew.core.extras import require
from fedfew.interface.outline import summary

COMMANDS = "fedfew.interface.commands"


class Command(TyperCommand):
    """A command that says where an unknown option belongs: most are keys of the config."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"No such option: {error.option_name}.{self._hint(error.option_name, args)}", ctx
            ) from None

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
    from fedfew.config.sections import NAMED, SECTIONS, settings_for  # noqa: PLC0415 - only after a mistake

    meant = {section: f"{section}.{NAMED[section][0]}" for section in NAMED}
    for section in ("", *SECTIONS):
        usual = NAMED[section][2] if section in NAMED else ""
        names = settings_for(section, usual) if usual != "auto" else {}
        keys = {name: f"{section}.{name}".lstrip(".") for name in names}
        meant = keys | meant if section else meant | keys  # keys without a section come first, then by section
        meant |= {key: key for key in keys.values()}
    close = difflib.get_close_matches(word, meant, 1, cutoff=0.75)
    return meant[word] if word in meant else meant[close[0]] if close else ""


class LazyGroup(TyperGroup):
    """Commands by name, each as ``module:function`` below fedfew.interface.commands, or a subgroup."""

    def __init__(self, name: str, help: str, commands: "Mapping[str, str | LazyGroup]", extra: str = "", **more: Any):
        super().__init__(name=name, help=help, no_args_is_help=True, rich_markup_mode="rich", **more)
        self.targets, self.extra = commands, extra

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command for the list of commands: its name, and the help line from its source."""
        target = self.targets.get(cmd_name)
        return click.Command(cmd_name, help=summary(f"{COMMANDS}.{target}")) if isinstance(target, str) else target

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str, click.Command, list[str]]:
        """The command with its options."""
        name, *rest = args
        if name not in self.targets:
            close = difflib.get_close_matches(name, self.targets, 1)
            raise click.UsageError(f"No such command: {name}." + (f" Did you mean {close[0]}?" if close else ""), ctx)
        target = self.targets[name]
        return name, self._command(name, target) if isinstance(target, str) else target, rest

    def _command(self, name: str, target: str) -> click.Command:
        """The command's function with its options; its module is imported here."""
        if self.extra:
            require(self.extra, f"fedfew {self.name}")
        module, _, function = f"{COMMANDS}.{target}".partition(":")
        call = getattr(import_module(module), function)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        app.command(name, cls=Command)(call)
        made, hints = typer.main.get_command(app), get_type_hints(call, include_extras=True)
        for argument in made.params:  # click 8.5 drops the help that typer < 0.21 gives an argument
            for note in getattr(hints.get(argument.name or ""), "__metadata__", ()):
                if isinstance(note, ArgumentInfo):
                    argument.help = note.help
        return made
