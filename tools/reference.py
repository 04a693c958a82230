"""Generates the reference pages of the docs from the code: config keys, command line with error codes, Python API.

``python -m tools.reference docs/reference`` writes the pages into the folder.
"""

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from annotated_types import Ge, Gt, Le, Lt

import fedfew
from fedfew import extend, flower, plots
from fedfew.config.tree import FLEETS, NAMED, PLAIN, SECTIONS, DatasetSettings, settings_for
from fedfew.core.errors import CODES
from fedfew.core.settings import Setting, settings_of
from fedfew.interface.cli import app
from fedfew.methods.entry import Entry
from fedfew.studies.compare import Comparison

NOTE = "<!-- written by make docs; change the code, not this page -->\n"
ABOUT = {
    "dataset": "Which images, and how they are split. The first table holds for every dataset.",
    "partition": "How a simulation assigns the unlabeled images to its clients. Images in folders have sites instead.",
    "model": "The network.",
    "method": "How server and clients train, and how their models become one; see [Methods](../understand/methods.md).",
    "objective": "What clients minimise, for methods that leave it open: fedavg and those built on it, ds-fl.",
    "aggregator": "How the clients' models are aggregated. The default `\"auto\"` is the method's usual rule.",
    "server": "How the server trains on its labels.",
    "client": "How a client trains on its images.",
    "client_labels": "[Labels at clients](../understand/methods.md#labels-at-clients), a scenario of the simulation.",
    "vote": "Whose class distribution pseudo-labels assume.",
    "norm": "What happens to normalisation layers.",
    "privacy": "What is done to an update before it leaves its client.",
    "compression": "How updates are compressed before upload.",
    "availability": "Which clients can be sampled.",
    "gate": "What a client's answer must satisfy.",
    "evaluate": "What is scored after a round. [Methods](../understand/methods.md) defines each accuracy.",
    "engine": "What networks compute on. Another device, data type or compilation may change the bits of the result.",
    "fleet": "Where the clients train. It never changes the result, so it may change in a `fedfew resume`.",
}

CONFIG = f"""# Config keys

{NOTE}
A config is a TOML file. Every key has a default, so a config says only what differs. `run.toml` in a run folder has all
of them. On the command line: `--set partition.mu=0.1`. A key that is not on this page is refused.

A config may name a `base`: a preset, or a TOML file (a path from the config's own folder). It then says only what
differs:

```toml
base = "fixmatch"
rounds = 30

[aggregator]
name = "median"
```

This means the same as the base with `--set rounds=30 --set aggregator.name=median`. A base may have a base.
`fedfew presets NAME` prints a preset or file in full. Naming another method, model, … keeps only the settings that both
have.

The sections `dataset`, `partition`, `model`, `method`, `objective`, `aggregator` and `fleet` name something: `name = …`
or, for partition and fleet, `kind = …`. The other keys of the section are the settings of what is named. Instead of a
name from this page, all but the fleet take `package.module:Name` [of your own](../how-to/extend.md).

## Outside any section
"""


def config_page() -> str:
    """Every section and every key, with its default and meaning."""
    lines = [CONFIG, *_table(settings_for("", ""))]
    for section in SECTIONS:
        lines += ["", f"## [{section}]", "", ABOUT[section], ""]
        lines += _table(settings_for(section, "")) if section in PLAIN else _named(section)
    return "\n".join(lines) + "\n"


def _named(section: str) -> Iterator[str]:
    key, registry, default = NAMED[section]
    if section == "fleet":
        yield f"`{key}`: " + ", ".join(f"`{name}`" for name in FLEETS) + f". Default: `{default}`."
        yield ""
        yield from _table(settings_for("fleet", default))
        return
    if section == "dataset":
        yield from _table(settings_of(DatasetSettings))
        yield ""
    yield f"`{key}` is one of these. Default: `{default}`."
    for name, target in registry.items():
        yield from ("", f"### {section}.{key} = {name!r}".replace("'", '"'), "", _about(target), "")
        settings = settings_for(section, name) if section == "method" else settings_of(target)
        yield from _table(settings) if settings else ["No settings."]


def _about(target: Any) -> str:
    """The first paragraph of its docstring."""
    target = target.method if isinstance(target, Entry) else target
    return plain(" ".join((inspect.getdoc(target) or "").partition("\n\n")[0].split()).replace("``", "`"))


def _table(settings: Mapping[str, Setting]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for setting in settings.values():
        cells = (f"`{setting.name}`", value_of(setting.annotation), f"`{_toml(setting.default)}`", plain(setting.doc))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def value_of(annotation: Any) -> str:
    """The values a setting takes, in words."""
    if typing.get_origin(annotation) is Annotated:
        inner, *notes = typing.get_args(annotation)
        signs = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
        bounds = [
            f"{sign} {getattr(note, kind.__name__.lower()):g}"
            for note in notes
            for kind, sign in signs.items()
            if isinstance(note, kind)
        ]
        return " ".join([value_of(inner), ", ".join(bounds)]).strip()
    if typing.get_origin(annotation) is Literal:
        return " or ".join(f"`{_toml(choice)}`" for choice in typing.get_args(annotation))
    words = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


COMMANDS = f"""# Command line and errors

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
    return "\n".join([COMMANDS, *_entries(app, "fedfew"), ERRORS, *_errors()]) + "\n"


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


API = f"""# Python API

{NOTE}
Everything that `import fedfew` offers. [Compare methods](../how-to/compare.md#from-python) shows how the parts work
together. Names that are not on this page may change at any time."""
CLASSES = (fedfew.Experiment, fedfew.Run, Comparison, fedfew.FedfewError, fedfew.ConfigErrors)
"""Classes whose methods are listed, without those that are internal."""
INSIDE = {"with_", "again", "fault", "held", "flat", "document", "traffic", "folder"}


def api_page() -> str:
    """Functions, classes with their methods and properties, plots, and the names for extensions."""
    lines = [API, "", "## Functions"]
    for name in sorted(n for n in fedfew.__all__ if inspect.isfunction(getattr(fedfew, n))):
        lines += _signature(f"fedfew.{name}", getattr(fedfew, name))
    for kind in CLASSES:
        own = f"fedfew.{kind.__name__}" if kind.__name__ in fedfew.__all__ else kind.__name__
        lines += ["", f"## {own}", "", _words(kind)]
        for name, member in vars(kind).items():
            lines += _member(name, member)
    lines += ["", "## fedfew.plots", "", "Each function returns a matplotlib figure of a `Run` or of a run folder.", ""]
    lines += [f"- `{name}`: {_words(getattr(plots, name))}" for name in plots.__all__]
    lines += ["", "## fedfew.flower", "", _words(flower)]
    lines += [*_signature("fedfew.flower.run", flower.run), *_signature("fedfew.flower.train", flower.train)]
    lines += ["", "## fedfew.extend", "", _words(extend), "", ", ".join(f"`{name}`" for name in extend.__all__) + "."]
    return "\n".join(lines) + "\n"


def _member(name: str, member: Any) -> Iterator[str]:
    if name.startswith("_") or name in INSIDE:
        return
    if isinstance(member, property | cached_property):
        target = member.fget if isinstance(member, property) else member.func
        yield from ("", f"**`{name}`**", "", _words(target))
    elif inspect.isfunction(target := getattr(member, "__func__", member)):
        yield from _signature(name, target, "**")


def _signature(name: str, target: Any, mark: str = "### ") -> list[str]:
    title = f"{mark}`{name}`{mark if mark == '**' else ''}"
    return ["", title, "", f"`{name}({_parameters(target)})`", "", _words(target)]


def _parameters(target: Any) -> str:
    """Names and defaults; types are in the code, and editors show them."""
    options = [p for p in inspect.signature(target).parameters.values() if p.name != "self"]
    words = []
    for position, parameter in enumerate(options):
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        if keyword and (position == 0 or options[position - 1].kind is not parameter.KEYWORD_ONLY):
            words.append("*")
        default = getattr(parameter.default, "__name__", repr(parameter.default))
        stars = str(parameter).partition(parameter.name)[0]
        words.append(f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={default}"))
    return ", ".join(words)


def _words(target: Any) -> str:
    """The docstring in Markdown."""
    return (inspect.getdoc(target) or "").replace("``", "`").replace("<", "&lt;")


PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "command-line.md": commands_page,
    "api.md": api_page,
}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(write(), "utf-8")
