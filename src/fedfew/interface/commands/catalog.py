"""fedfew methods, presets and explain: what can be named in a config, and what an error code means. No torch needed."""

import difflib
import inspect
import sys
from dataclasses import asdict
from typing import Any

from fedfew.config import REGISTRIES
from fedfew.config.files import dumps
from fedfew.config.files import presets as known_presets
from fedfew.core.errors import CODES, FedfewError
from fedfew.interface.console import Answer, out

FLEETS = {
    "inline": "One client after another, in this process.",
    "pool": "Clients on several cores, one process each; bit-identical to inline.",
    "flower": "Clients on other machines, or a trial on this one; see `fedfew deploy`.",
}

PARTS = {"method": "name", "objective": "name", "aggregator": "name", "vote": "prior", "compression": "kind"}
"""The sections a published method is made of, and the key that says what each does."""
UNUSED = {"vote": "server", "compression": "none"}
TELLING = ("paper-tuned", "semifl", "fl2")
"""Presets to show first for a name that several presets use."""


def methods(name: str) -> Answer:
    if name:
        return _describe(name)
    kinds = {f"{kind}s": {entry: known.summary(entry) for entry in known} for kind, known in REGISTRIES.items()}
    known = {entry for names in kinds.values() for entry in names}
    kinds |= {"fleets": FLEETS, "presets": {k: about for k, about in known_presets().items() if k not in known}}

    def show() -> None:
        for kind, names in kinds.items():
            more = " made of these (`fedfew presets` lists all)" if kind == "presets" else ""
            out.print(f"\n[bold]{kind}[/]{more}")
            for entry, about in names.items():
                out.print(f"  {entry:20} {about}", markup=False, soft_wrap=True)

    return {kind: list(names) for kind, names in kinds.items()}, show


def presets(name: str) -> Answer:
    if name:
        from fedfew.config.schema import load

        document = load(name).document
        return document, lambda: sys.stdout.write(dumps(document))

    def show() -> None:
        for preset, about in known_presets().items():
            out.print(f"[bold]{preset:22}[/] {about}", soft_wrap=True)

    return {"presets": known_presets()}, show


def explain(code: str) -> Answer:
    entries = CODES if not code else {code.upper(): CODES[code.upper()]} if code.upper() in CODES else {}
    if not entries:
        close = difflib.get_close_matches(code.upper(), CODES, 1)
        hint = f"Did you mean {close[0]}?" if close else "`fedfew explain` lists all codes"
        raise FedfewError("E105", "explain", f"there is no code {code!r}", hint)

    def show() -> None:
        for name, entry in entries.items():
            out.print(f"[bold]{name}[/]  {entry.title}")
            if code:
                out.print(f"{entry.cause}\n[green]What to do:[/] {entry.remedy}")

    return {name: asdict(entry) for name, entry in entries.items()}, show


def _describe(name: str) -> Answer:
    """What a name means, its settings and the aggregators it does not fit."""
    from fedfew.config.names import imported, is_own
    from fedfew.core.settings import settings_of
    from fedfew.methods.entry import Entry

    kind = "own" if is_own(name) else next((kind for kind, names in REGISTRIES.items() if name in names), "")
    if not kind:
        return _preset(name)
    target: Any = imported(name, "methods") if kind == "own" else REGISTRIES[kind][name]
    settings = target.settings if isinstance(target, Entry) else settings_of(target)
    about = _about(kind, target)
    unfit = target.unfit if isinstance(target, Entry) else {}
    preset = name if name in known_presets() else _preset_with(kind, name)

    def show() -> None:
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

    values = {k: {"default": s.default, "doc": s.doc} for k, s in settings.items()}
    result = {"name": name, "kind": kind, "about": about, "settings": values, "unfit": unfit, "preset": preset}
    return result, show


def _preset(name: str) -> Answer:
    """The parts of a published method that is a preset."""
    about = known_presets().get(name)
    if about is None:
        known = [entry for names in REGISTRIES.values() for entry in names]
        close = difflib.get_close_matches(name, [*known, *known_presets()], 1)
        hint = f"Did you mean {close[0]}?" if close else "`fedfew methods` lists all names"
        raise FedfewError("E105", "methods", f"{name!r} is unknown", hint)
    from fedfew.config.schema import load

    config = load(name)
    document = config.document
    without = () if config.entry.takes("objective") else ("objective",)
    parts = {
        section: document[section]
        for section, key in PARTS.items()
        if section not in without and document[section][key] != UNUSED.get(section)
    }

    def show() -> None:
        out.print(f"[bold]{name}[/] (preset)\n\n{about}\n\nmade of")
        for section, part in parts.items():
            out.print(f"  {section:20} {part[PARTS[section]]}", markup=False)
        out.print(f"\nall keys: fedfew presets {name}\npreset: fedfew run {name}", markup=False)

    return {"name": name, "kind": "preset", "about": about, "parts": parts, "preset": name}, show


def _preset_with(kind: str, name: str) -> str | None:
    """The first preset that uses it, if none has its name."""
    if kind not in ("method", "aggregator", "objective"):
        return None
    from fedfew.config.tables import read

    known = sorted(known_presets(), key=lambda preset: preset not in TELLING)
    return next((preset for preset in known if read(preset)[0].get(kind, {}).get("name") == name), None)


def _about(kind: str, target: Any) -> str:
    """Its docstring, preceded by the module's with citation and equation if the module is about one family."""
    target = getattr(target, "method", target)
    module = sys.modules[target.__module__]
    own, family = inspect.getdoc(target) or "", inspect.getdoc(module) or ""
    if kind == "method":
        return family or own
    if kind in ("aggregator", "objective") and module.__name__ != "fedfew.aggregators.weighted":
        return f"{family}\n\n{own}"
    return own or family
