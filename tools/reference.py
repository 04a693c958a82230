"""Generates the reference pages of the docs from the code: config keys, command line with error codes, Python API.

``python -m tools.reference docs/reference`` writes the pages into the folder.
"""

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from tools.reference_api import api_page
from tools.reference_commands import NOTE, commands_page, plain

from fedfew.config.tree import FLEETS, NAMED, PLAIN, SECTIONS, DatasetSettings, settings_for
from fedfew.core.settings import Setting, settings_of
from fedfew.methods.entry import Entry

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


PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "command-line.md": commands_page,
    "api.md": api_page,
}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(write(), "utf-8")
