"""Presets and TOML files: their names, purpose and content as a table; and TOML with the few types a config has."""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("fedfew.config") / "presets.toml").read_text("utf-8"))


@cache
def presets() -> Mapping[str, str]:
    """The presets' names and purpose."""
    return {name: table["about"] for name, table in sorted(_presets().items())}


def parse(source: str | Path) -> tuple[dict[str, Any], str, Path]:
    """The table in a preset or a TOML file as written, its name for errors, and the folder its paths start from."""
    known, where = presets(), str(source)
    if where in known:
        return {key: deepcopy(value) for key, value in _presets()[where].items() if key != "about"}, where, Path()
    try:
        return _table(Path(source).read_text("utf-8"), where), where, Path(source).parent
    except tomllib.TOMLDecodeError as error:
        raise FedfewError("E102", where, str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        close = difflib.get_close_matches(where, known, 1)
        hint = f"Did you mean {close[0]}? " if close else ""
        fault = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        why = f"is neither a preset nor a readable TOML file{fault}"
        raise FedfewError("E101", where, why, f"{hint}Presets: {', '.join(known)}") from None


def _table(text: str, where: str) -> dict[str, Any]:
    """TOML as a table; integers have at most 64 bits, as TOML says, because the code below cannot print larger ones."""
    remedy = "Give a value of a reasonable size"
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise FedfewError("E102", where, "lists are nested too deeply", remedy) from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise FedfewError("E102", where, "an integer has thousands of digits", remedy) from None
    if key := next(_beyond_64_bits(table), ""):
        raise FedfewError("E102", where, f"{key} is an integer of more than 64 bits", remedy)
    return table


def _beyond_64_bits(value: Any, key: str = "") -> Iterator[str]:
    """The keys of integers that are too large."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield key
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else ((key, inner) for inner in value):
            yield from _beyond_64_bits(inner, f"{key}.{name}" if key and isinstance(value, dict) else name)


def parse_set(text: str) -> tuple[str, Any]:
    """``partition.mu=0.1`` → ("partition.mu", 0.1); a value that is not TOML is taken as a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise FedfewError("E102", f"--set {text}", "is not of the form key=value", "Write e.g. --set partition.mu=0.1")
    try:
        return key.strip(), _table(f"value = {value.strip()}", f"--set {key.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """A config as dotted keys, like overrides."""
    dotted: dict[str, Any] = {}
    for section, value in document.items():
        dotted |= {f"{section}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {section: value}
    return dotted


def dumps(document: Mapping[str, Any]) -> str:
    """A config as TOML: plain keys first, then one table per section."""
    plain = [f"{key} = {literal(value)}" for key, value in document.items() if not isinstance(value, Mapping)]
    tables = [
        "\n".join([f"\n[{name}]", *(f"{key} = {literal(value)}" for key, value in table.items())])
        for name, table in document.items()
        if isinstance(table, Mapping)
    ]
    return "\n".join([*plain, *tables]) + "\n"


def literal(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows it, TOML does not
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return repr(value)
