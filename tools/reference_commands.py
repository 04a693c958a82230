"""Generates the reference page of the command line from the commands themselves, and from the error codes."""

import inspect
from collections.abc import Iterator

import click

from fedfew.core.errors import CODES
from fedfew.interface.cli import app

NOTE = "<!-- written by make docs; change the code, not this page -->\n"
TOP = f"""# Command line and errors

{NOTE}
`fedfew COMMAND --help` prints an entry of this page. With `--json`, the result is one line of JSON, the last of stdout;
messages for people go to stderr. The exit status is 0 if all went well, 2 if you can correct what was wrong (the
message has a [code](#errors)), and 1 otherwise.

To complete commands and options with the Tab key, add one line to your shell's start-up file:
`eval "$(_FEDFEW_COMPLETE=bash_source fedfew)"` for bash, `eval "$(_FEDFEW_COMPLETE=zsh_source fedfew)"` for zsh."""

ERRORS = """
## Errors

An error that you can fix has a code. The message names the place, what is wrong there and what to do; the exit status
is 2; there is no traceback (`--debug` shows it). `fedfew explain E104` prints an entry of these tables. All errors of
a config are reported at once."""
FAMILIES = {
    "1": ("Config", "The requested run is not possible. Nothing has been started yet."),
    "2": ("Data", "Images or labels are missing, damaged, or would spoil the result."),
    "3": ("Storage", "Run folders, checkpoints and files that were written."),
    "4": ("Updates", "A client's answer was missing or left out. The run continued; the codes are in `rounds.jsonl`."),
    "5": ("Network", "Processes and sites that do not start, answer or fit together."),
}


def commands_page() -> str:
    """One entry for each command, subcommands after their group, and a table for each family of errors."""
    return "\n".join([TOP, *_entries(app, "fedfew"), ERRORS, *_errors()]) + "\n"


def _errors() -> Iterator[str]:
    for digit, (title, about) in FAMILIES.items():
        yield from ("", f"### {title} (E{digit}xx)", "", about, "", "| code | meaning | what to do |", "|---|---|---|")
        for code, entry in CODES.items():
            if code[1] == digit:
                cells = (f"**{code}** {entry.title}", plain(entry.cause), plain(entry.remedy))
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def plain(text: str) -> str:
    """Text for Markdown: <class> is not a tag, except in code, where it is shown as it is."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


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
