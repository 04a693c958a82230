"""Shows a method, aggregator, objective, model, dataset or partition with its settings, or a preset with every key."""

import difflib
import inspect
import sys
from typing import Any

from fedfew.config import REGISTRIES
from fedfew.config.files import dumps, presets
from fedfew.config.names import imported, is_own
from fedfew.config.schema import load
from fedfew.config.tables import read
from fedfew.core.errors import FedfewError
from fedfew.core.settings import settings_of
from fedfew.interface.console import out, print_json
from fedfew.methods.entry import Entry

PARTS = {"method": "name", "objective": "name", "aggregator": "name", "vote": "prior", "compression": "kind"}
"""The sections a published method is made of, and the key that says what each does."""
UNUSED = {"vote": "server", "compression": "none"}
TELLING = ("paper-tuned", "semifl", "fl2")
"""Presets to show first for a name that several presets use."""


def show_config(name: str, json: bool) -> None:
    """Print a preset or a config file as in run.toml."""
    document = load(name).document
    if json:
        print_json(document)
    else:
        sys.stdout.write(dumps(document))


def describe(name: str, json: bool) -> None:
    """Print what a name means, its settings and the aggregators it does not fit."""
    kind = "own" if is_own(name) else next((kind for kind, names in REGISTRIES.items() if name in names), "")
    if not kind:
        _preset(name, json)
        return
    target: Any = imported(name, "methods") if kind == "own" else REGISTRIES[kind][name]
    settings = target.settings if isinstance(target, Entry) else settings_of(target)
    about = _about(kind, target)
    unfit = target.unfit if isinstance(target, Entry) else {}
    preset = name if name in presets() else _preset_with(kind, name)
    if json:
        values = {k: {"default": s.default, "doc": s.doc} for k, s in settings.items()}
        print_json({"name": name, "kind": kind, "about": about, "settings": values, "unfit": unfit, "preset": preset})
        return
    out.print(f"[bold]{name}[/] ({kind})\n")
    out.print(about, markup=False, soft_wrap=True)
    out.print("\n[bold]settings[/]" if settings else "\nno settings")
    for setting in settings.values():
        out.print(f"  {setting.name:20} {setting.default!r:14} {setting.doc}", markup=False, soft_wrap=True)
    if unfit:
        out.print("\n[bold]aggregators that do not fit[/]")
    for aggregator, reason in unfit.items():
        out.print(f"  {aggregator:20} {reason}", markup=False, soft_wrap=True)
    if preset:
        out.print(f"\npreset: fedfew run {preset}", markup=False)


def _preset(name: str, json: bool) -> None:
    """Print the parts of a published method that is a preset."""
    about = presets().get(name)
    if about is None:
        known = [entry for names in REGISTRIES.values() for entry in names]
        close = difflib.get_close_matches(name, [*known, *presets()], 1)
        hint = f"Did you mean {close[0]}?" if close else "`fedfew methods` lists all names"
        raise FedfewError("E105", "methods", f"{name!r} is unknown", hint)
    config = load(name)
    document = config.document
    without = () if config.entry.takes("objective") else ("objective",)
    parts = {
        section: document[section]
        for section, key in PARTS.items()
        if section not in without and document[section][key] != UNUSED.get(section)
    }
    if json:
        print_json({"name": name, "kind": "preset", "about": about, "parts": parts, "preset": name})
        return
    out.print(f"[bold]{name}[/] (preset)\n\n{about}\n\nmade of")
    for section, part in parts.items():
        out.print(f"  {section:20} {part[PARTS[section]]}", markup=False)
    out.print(f"\nall keys: fedfew presets {name}\npreset: fedfew run {name}", markup=False)


def _preset_with(kind: str, name: str) -> str | None:
    """The first preset that uses it, if none has its name."""
    if kind not in ("method", "aggregator", "objective"):
        return None
    known = sorted(presets(), key=lambda preset: preset not in TELLING)
    return next((preset for preset in known if read(preset)[0].get(kind, {}).get("name") == name), None)


def _about(kind: str, target: Any) -> str:
    """Its docstring, preceded by the module's with citation and equation if the module is about one family."""
    target = target.method if isinstance(target, Entry) else target
    own = inspect.getdoc(target) or ""
    module = sys.modules[target.__module__]
    if kind == "method":
        return inspect.getdoc(module) or own
    shared = module.__name__ == "fedfew.aggregators.weighted" or not module.__name__.startswith(
        ("fedfew.aggregators", "fedfew.objectives")
    )
    return own if shared else f"{inspect.getdoc(module)}\n\n{own}"
