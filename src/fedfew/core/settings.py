"""Registries of what a config can name, and the settings of each, from the annotations of its keyword parameters.

A setting is a parameter of a function or a field of a dataclass with a default:
``cap: Annotated[float, Ge(0), Doc("no weight above cap/m; 0 switches it off")] = 0.0``.
"""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, TypeVar, cast

from annotated_types import Ge, Gt, Le, Lt

T = TypeVar("T")


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


@cache
def settings_of(target: Callable[..., Any]) -> dict[str, Setting]:
    """The settings of a dataclass or function: its parameters that are annotated with a ``Doc``; do not change them."""
    hints = typing.get_type_hints(target if inspect.isfunction(target) else target.__init__, include_extras=True)
    settings = {}
    for name, parameter in inspect.signature(target).parameters.items():
        annotation = hints.get(name)
        docs = [note.text for note in getattr(annotation, "__metadata__", ()) if isinstance(note, Doc)]
        if docs:
            settings[name] = Setting(name, annotation, parameter.default, docs[-1])
    return settings


class Registry(Mapping[str, T]):
    """Names, and for each the ``module:attribute`` in ``package`` that it stands for and a line about it.

    An installed package adds names by entry points of the group, such as ``fedfew.methods``; the table's own names
    come first. ``adapt`` makes an entry of what a package offers.
    """

    def __init__(
        self,
        package: str,
        table: Mapping[str, tuple[str, str]],
        adapt: Callable[[Any], T] = lambda target: cast(T, target),
        group: str = "",
    ) -> None:
        self.package, self.table, self._adapt, self.group = package, table, adapt, group or package

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.table}

    def __getitem__(self, name: str) -> T:
        if name not in self.table:
            return self._adapt(self._installed[name].load())
        module, _, attribute = self.table[name][0].partition(":")
        return cast(T, getattr(import_module(f"{self.package}.{module}"), attribute))

    def __contains__(self, name: object) -> bool:
        return name in self.table or name in self._installed

    def __iter__(self) -> Iterator[str]:
        yield from self.table
        yield from self._installed

    def __len__(self) -> int:
        return len(self.table) + len(self._installed)

    def summary(self, name: str) -> str:
        """A line about a name; nothing is imported for it."""
        if name in self.table:
            return self.table[name][1]
        package = self._installed[name].dist
        return f"From the installed package {package.name}." if package else "From an installed package."
