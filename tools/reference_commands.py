"""Generates the reference page of the command line from the commands themselves."""

import inspect
from collections.abc import Iterator

import click

from fedfew.interface.cli import app

TOP = """# Command line

<!-- written by make docs; change the code, not this page -->

`fedfew COMMAND --help` prints an entry of this page. With `--json`, the result is one line of JSON, the last of stdout;
messages for people go to stderr. The exit status is 0 if all went well, 2 if you can correct what was wrong (the
message has a [code](errors.md)), and 1 otherwise.

To complete commands and options with the Tab key, add one line to your shell's start-up file:
`eval "$(_FEDFEW_COMPLETE=bash_source fedfew)"` for bash, `eval "$(_FEDFEW_COMPLETE=zsh_source fedfew)"` for zsh."""


def commands_page() -> str:
    """One entry for each command, subcommands after their group."""
    return "\n".join([TOP, *_entries(app, "fedfew")]) + "\n"


def _entries(group: click.Group, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        context = click.Context(command, info_name=full)
        usage = command.get_usage(context).removeprefix("Usage: ")
        yield from ("", f"## {full}", "", inspect.cleandoc(command.help or "").replace("\b\n", ""), "")
        if isinstance(command, click.Group):
            yield from _entries(command, full)
            continue
        yield from ("```text", " ".join(usage.split()), "```")
        rows = [row for parameter in command.params if (row := _row(parameter, context))]
        if rows:
            yield from ("", "| option | meaning |", "|---|---|", *rows)


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """An option or argument with its text; nothing for those that are hidden or say nothing about themselves."""
    if getattr(parameter, "hidden", False) or not (text := getattr(parameter, "help", None)):
        return ""
    record = parameter.get_help_record(context)
    words = record[0] if record else parameter.make_metavar(context)
    alternatives = words.replace("[", "").replace("]", "") if "|" in words else words
    return f"| `{alternatives.replace('|', ' or ')}` | {text.replace('|', ' or ').replace('<', '&lt;')} |"
