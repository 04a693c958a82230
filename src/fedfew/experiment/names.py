"""From a name in the config to the thing it names: a registry's entry, or ``package.module:function`` of the user's."""

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fedfew.core.errors import FedfewError


def is_own(name: str) -> bool:
    """Whether a name points to code outside fedfew."""
    return ":" in name


def find(section: str, name: str, registry: Mapping[str, Any]) -> Callable[..., Any]:
    """What a name stands for."""
    if not is_own(name):
        entry: Callable[..., Any] = registry[name]
        return entry
    module, _, attribute = name.partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedfewError("E111", f"{section}.name", f"{name!r} cannot be imported: {error}") from None
    if not callable(target):
        raise FedfewError("E111", f"{section}.name", f"{name!r} is not a function")
    return typing.cast(Callable[..., Any], target)


def method_class(factory: Callable[..., Any]) -> Any:
    """The class of a method's entry: itself, or what the function gives back."""
    return factory if inspect.isclass(factory) else typing.get_type_hints(factory)["return"]
