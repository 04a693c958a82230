"""Settings of everything in a registry, read from the annotations of its keyword parameters.

A setting is a parameter of a function or a field of a dataclass with a default:
``cap: Annotated[float, Ge(0), Doc("no weight above cap/m; 0 switches it off")] = 0.0``.
"""

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt


@dataclass(frozen=True)
class Doc:
    """What a setting means, in a few words; shown by ``fedfew methods NAME`` and in the docs."""

    text: str


NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Decay = Annotated[float, Ge(0), Lt(1)]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Setting:
    """One configurable value: its name, its annotated type, its default and what it means."""

    name: str
    annotation: Any
    default: Any
    doc: str


def settings_of(target: Callable[..., Any]) -> dict[str, Setting]:
    """The settings of a dataclass or function: its parameters that are annotated with a ``Doc``."""
    return dict(_settings_of(target))


@cache
def _settings_of(target: Callable[..., Any]) -> dict[str, Setting]:
    hints = typing.get_type_hints(target if inspect.isfunction(target) else target.__init__, include_extras=True)
    settings = {}
    for name, parameter in inspect.signature(target).parameters.items():
        annotation = hints.get(name)
        docs = [note.text for note in getattr(annotation, "__metadata__", ()) if isinstance(note, Doc)]
        if docs:
            settings[name] = Setting(name, annotation, parameter.default, docs[-1])
    return settings
