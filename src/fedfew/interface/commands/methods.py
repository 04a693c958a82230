"""fedfew methods: what can be named in a config, and the settings of each."""

import inspect
from typing import Annotated, Any

import typer

from fedfew.interface.options import Json


def register(app: typer.Typer) -> None:
    app.command("methods")(methods)


def methods(
    name: Annotated[str, typer.Argument(help="A method, aggregator, objective or model, or package.module:Name.")] = "",
    json: Json = False,
) -> None:
    """List methods, aggregators, objectives, models, datasets, partitions and fleets; or explain one."""
    from fedfew.aggregators import AGGREGATORS
    from fedfew.config.schema import FLEETS
    from fedfew.data import DATASETS, PARTITIONS
    from fedfew.interface.console import out, print_json
    from fedfew.methods import METHODS
    from fedfew.models import MODELS
    from fedfew.objectives import OBJECTIVES

    registries: dict[str, Any] = {
        "algorithms": METHODS,
        "aggregators": AGGREGATORS,
        "objectives": OBJECTIVES,
        "models": MODELS,
        "datasets": DATASETS,
        "partitions": PARTITIONS,
        "fleets": dict.fromkeys(FLEETS),
    }
    if name:
        _one(name, registries, json)
        return
    if json:
        print_json({kind: list(names) for kind, names in registries.items()})
        return
    for kind, names in registries.items():
        out.print(f"\n[bold]{kind}[/]")
        for entry, target in names.items():
            about = (inspect.getdoc(target) or "").partition("\n")[0] if target is not None else ""
            out.print(f"  {entry:20} {about}", markup=False, soft_wrap=True)


def _one(name: str, registries: dict[str, Any], json: bool) -> None:
    import difflib

    from fedfew.config.files import presets
    from fedfew.config.names import imported, is_own, method_class
    from fedfew.core.errors import FedfewError
    from fedfew.core.settings import settings_of
    from fedfew.interface.console import out, print_json

    if is_own(name):
        registries = {"own": {name: imported(name, "methods")}}
    kind = next((kind for kind, names in registries.items() if names.get(name) is not None), None)
    if kind is None:
        known = [entry for names in registries.values() for entry in names]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {close[0]}?" if close else "`fedfew methods` lists all names"
        raise FedfewError("E105", "methods", f"{name!r} is unknown", hint)
    target = registries[kind][name]
    settings = settings_of(target)
    about = _about(kind, target)
    unfit = method_class(target).unfit if kind == "algorithms" else {}
    preset = name if name in presets() else _preset_with(kind, name)
    if json:
        told = {k: {"default": s.default, "doc": s.doc} for k, s in settings.items()}
        print_json({"name": name, "kind": kind, "about": about, "settings": told, "unfit": unfit, "preset": preset})
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


TELLING = ("paper-tuned", "semifl", "fl2")
"""Presets that show a name at its best where several use it."""


def _preset_with(kind: str, name: str) -> str | None:
    """The first preset that uses it, where none has its name."""
    from fedfew.config.files import presets
    from fedfew.config.schema import load

    key = {"algorithms": "method.name", "aggregators": "aggregator.name", "objectives": "objective.name"}.get(kind)
    known = sorted(presets(), key=lambda preset: preset not in TELLING)
    return next((preset for preset in known if load(preset)[key] == name), None) if key else None


def _about(kind: str, target: Any) -> str:
    """Its docstring; before it the module's, which has citation and equation, where a module is about one family."""
    import sys

    own = inspect.getdoc(target) or ""
    module = sys.modules[target.__module__]
    if kind == "algorithms":
        return inspect.getdoc(module) or own
    shared = module.__name__ == "fedfew.aggregators.weighted" or not module.__name__.startswith(
        ("fedfew.aggregators", "fedfew.objectives")
    )
    return own if shared else f"{inspect.getdoc(module)}\n\n{own}"
