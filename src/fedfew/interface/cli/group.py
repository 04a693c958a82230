"""Groups of commands: listed in their order, with a hint for a mistyped option, and imported when they are run."""

import difflib
from functools import partial
from importlib import import_module
from typing import Any

import click


def execute(target: str, **options: Any) -> None:
    """Call ``module:function`` of fedfew.interface.commands: with torch and all that only this command needs."""
    module, _, function = target.partition(":")
    if module == "deploy":
        from fedfew.core.extras import require  # noqa: PLC0415 - other commands need no network

        require("flower", "fedfew deploy")
    getattr(import_module(f"fedfew.interface.commands.{module}"), function)(**options)


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


def command(name: str, target: str, help: str, *params: click.Parameter) -> Command:
    """A command, the ``module:function`` that does its work, its help text (a short sentence first) and parameters."""
    return Command(name, params=list(params), help=help, callback=partial(execute, target))


def group(name: str, help: str, *commands: click.Command, **settings: Any) -> Group:
    """A group of commands."""
    return Group(name, {str(part.name): part for part in commands}, help=help, **settings)
