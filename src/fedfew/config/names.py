"""From a name in the config to what it names: a registry's entry, or the user's ``package.module:Name``."""

import importlib
import inspect
import traceback
import typing
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, TypeVar

from torch import nn

from fedfew.config import REGISTRIES
from fedfew.core.errors import FedfewError
from fedfew.core.settings import Setting, settings_of
from fedfew.core.types import Aggregate, Method
from fedfew.methods.entry import Entry
from fedfew.models.build import SHAPE, WIDTH, required

T = TypeVar("T")
SITES = "sites"
"""The partition of a dataset with its own sites: nothing is drawn."""

PARTS = ("server", "client", "aggregator")
"""Parts of the config that every method gets besides its settings."""
OPTIONAL_PARTS = ("objective", "vote", "client_labels")
"""Parts that a method gets if it has a parameter of that name."""
MEMBERS = {
    "method": ("before_clients", "broadcast", "train_client", "after_clients"),
    "objective": ("begin", "labels"),
}
"""What a method's and an objective's class must define."""
POSITIONAL = {
    "partition": ("labels", "clients", "rng"),
    "model": SHAPE,
    "aggregator": ("contributions", "omega", "sigma"),
}
"""How each kind of function is called, before its settings."""


NAMING = (
    ("dataset", "name"), ("partition", "kind"), ("method", "name"), ("objective", "name"), ("aggregator", "name"),
    ("model", "name"), ("server", "augment"), ("client", "augment"),
)  # fmt: skip
"""Where a config can name code."""


@dataclass(frozen=True, eq=False)
class Named(Generic[T]):
    """What a section names, an entry of a registry or the user's own, together with its settings."""

    name: str
    entry: Callable[..., T]
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    """Whether it is code outside fedfew."""

    def __call__(self, *arguments: Any) -> T:
        """Call the entry with its settings."""
        return self.entry(*arguments, **self.settings)

    @staticmethod
    def sites() -> "Named[Any]":
        """The partition of a dataset with its own sites."""
        return Named(SITES, _no_partition)


def _no_partition(*_: Any) -> None:
    why = "the dataset has no sites of its own"
    raise FedfewError("E105", "partition.kind", why, 'Name a partition, e.g. "dirichlet"')


def is_own(name: str) -> bool:
    """Whether a name is the ``package.module:Name`` of code outside fedfew."""
    return ":" in name


def is_foreign(section: str, name: str) -> bool:
    """Whether a name stands for code outside fedfew: the user's own, or an installed package's."""
    return is_own(name) or name not in REGISTRIES[section].table


def own_code(document: Mapping[str, Any]) -> dict[str, str]:
    """The names of code outside fedfew in a config or a part of one, by the key that names them."""
    sections = {section: document.get(section) for section, _ in NAMING}
    names = {f"{section}.{key}": (sections[section] or {}).get(key) for section, key in NAMING
             if isinstance(sections[section], Mapping)}  # fmt: skip
    return {key: name for key, name in names.items() if isinstance(name, str) and is_own(name)}


def refused_code(document: Mapping[str, Any], allow_code: Collection[str]) -> tuple[str, str] | None:
    """The first key and name of code that a document asks for without permission; None if all of it is allowed.

    A document that somebody else may have written (a model file, a run folder, a message) runs only code that the
    person in front of this machine has named: ``package.module:Name``, or a module for what is defined in it.
    """
    return next((pair for pair in own_code(document).items() if not _is_allowed(pair[1], allow_code)), None)


def refuse_code(document: Mapping[str, Any], allow_code: Collection[str], where: str) -> None:
    """E125 if a document from a file asks for code without permission."""
    if refused := refused_code(document, allow_code):
        key, name = refused
        remedy = f"If you trust it, add --allow-code {name} (in Python: allow_code=[{name!r}])"
        raise FedfewError("E125", f"{where}: {key}", f"asks to run {name!r}", remedy)


def _is_allowed(name: str, allow_code: Collection[str]) -> bool:
    module, _, attribute = name.partition(":")
    if name in allow_code:
        return True
    # what an allowed module imports itself, such as os or subprocess, is not allowed with it
    return (
        module in allow_code
        and attribute.isidentifier()
        and getattr(imported(name, module), "__module__", None) == module
    )


def find(section: str, name: str) -> Any:
    """What a name stands for; code outside fedfew is checked first, to report faults before anything runs.

    A method is an Entry, which the user or an installed package may leave out.
    """
    where = f"{section}.{'kind' if section == 'partition' else 'name'}"
    target: Any = imported(name, where) if is_own(name) else _registered(section, name, where)
    if not is_foreign(section, name):
        return target
    if section == "method" and not isinstance(target, Entry):
        target = Entry(target)
    if section == "aggregator":
        target = _aggregating(target)
    if section == "model" and isinstance(target, nn.Module):
        module = target  # each network is a copy, so that no two train the same weights
        target = lambda: deepcopy(module)  # noqa: E731 - a model without parameters
    if fault := _misfit(section, target.method if isinstance(target, Entry) else target):
        raise FedfewError("E115", where, f"{name!r} {fault}")
    return target


def _aggregating(function: Callable[..., Any]) -> Callable[..., Aggregate]:
    """A function outside fedfew, which may forget what to return."""

    @wraps(function)
    def aggregate(*arguments: Any, **settings: Any) -> Aggregate:
        made = function(*arguments, **settings)
        if not isinstance(made, Aggregate):
            remedy = "Return Aggregate(vector, weights), with {} where clients have no weights"
            raise FedfewError("E115", "aggregator.name", f"it returned {type(made).__name__}, no Aggregate", remedy)
        return made

    return aggregate


def _registered(section: str, name: str, where: str) -> Any:
    """A registry's entry; an installed package's may fail on import."""
    try:
        return REGISTRIES[section][name]
    except Exception as error:
        if not is_foreign(section, name) or isinstance(error, KeyError):
            raise
        why = f"{name!r} of an installed package cannot be imported: {_import_fault(error)}"
        raise FedfewError("E111", where, why) from error


def settings_named(section: str, name: str) -> dict[str, Setting]:
    """The settings of what a name stands for: parameters annotated with a Doc.

    Code outside fedfew may have none of these; then every parameter with a default is a setting.
    """
    target = find(section, name)
    function = target.method if isinstance(target, Entry) else target
    documented: dict[str, Setting] = target.settings if isinstance(target, Entry) else settings_of(target)
    if documented or not is_foreign(section, name):
        return documented
    passed = (*PARTS, *OPTIONAL_PARTS, *POSITIONAL.get(section, ()))
    return {
        p.name: Setting(p.name, Any, p.default, "your own setting")
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty and p.name not in passed
    }


def imported(name: str, where: str) -> Callable[..., Any]:
    """The function or class that ``package.module:Name`` points to."""
    module, _, attribute = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except Exception as error:  # a user's module may fail in any way on import
        raise FedfewError("E111", where, f"{name!r} cannot be imported: {_import_fault(error)}") from error
    if not callable(target) and not isinstance(target, Entry):
        raise FedfewError("E111", where, f"{name!r} is neither a function nor a class")
    return typing.cast(Callable[..., Any], target)


def _import_fault(error: Exception) -> str:
    """An import's failure with the line it happened in."""
    if isinstance(error, ImportError | AttributeError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def _misfit(section: str, target: Callable[..., Any]) -> str:
    """Why the user's own code does not fit the section; empty if it does."""
    try:
        parameters = list(inspect.signature(target).parameters.values())
        settings_of(target)
        kind: Any = target
        if section in MEMBERS and not inspect.isclass(target):  # what a function makes
            kind = typing.get_type_hints(target)["return"]
    except KeyError:
        return "is a function that does not say what it returns; write -> and the class"
    except Exception as error:  # annotations are the user's code too
        return f"cannot be inspected: {type(error).__name__}: {error}"
    if section == "method" and not (inspect.isclass(kind) and issubclass(kind, Method)):
        return "is not a subclass of Method (from fedfew.extend import Method)"
    if section in MEMBERS and "__dataclass_fields__" not in vars(kind) and _fields(kind):
        return f"sets {', '.join(_fields(kind))} without being a dataclass; write @dataclass(frozen=True) above it"
    if missing := [
        name for name in MEMBERS.get(section, ()) if getattr(kind, name, None) is getattr(Method, name, None)
    ]:
        return f"has no {', '.join(missing)}"
    return _miscalled(section, parameters)


def _fields(kind: Any) -> list[str]:
    """The names that a class annotates itself, without its class variables."""
    return [name for name, hint in vars(kind).get("__annotations__", {}).items() if "ClassVar" not in str(hint)]


def _miscalled(section: str, parameters: list[inspect.Parameter]) -> str:
    """Why the user's own code cannot be called like the section's entries."""
    positional, names = POSITIONAL.get(section, ()), {p.name for p in parameters}
    if section == "model" and all(name in (*SHAPE, WIDTH) for name in required(parameters)):
        return ""
    try:
        inspect.Signature(parameters).bind_partial(*positional)
    except TypeError:
        return f"does not take {', '.join(positional)}"
    if section == "method" and not any(p.kind is p.VAR_KEYWORD for p in parameters) and not names >= set(PARTS):
        return f"does not take {', '.join(part for part in PARTS if part not in names)}, which every method gets"
    filled = (*PARTS, *OPTIONAL_PARTS) if section == "method" else ()
    unfilled = [name for name in required(parameters[len(positional) :]) if name not in filled]
    return f"needs {', '.join(unfilled)}, which nothing sets; a setting needs a default" if unfilled else ""
