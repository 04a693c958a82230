"""Registries: literal tables of what a config can name, each imported when it is looked up, with a line about it."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

T = TypeVar("T")


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
