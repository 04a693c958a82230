"""A config with today's defaults for missing keys, so that old and new runs can be compared."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedfew.config.names import is_own
from fedfew.config.sections import NAMED, SECTIONS, settings_for


def with_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """A run.toml with today's defaults for missing keys, so that old and new runs can be compared."""
    plain = {key: value for key, value in document.items() if key not in SECTIONS}
    return {**_defaults("", ""), **plain} | {section: _filled(section, document) for section in SECTIONS}


def _filled(section: str, document: Mapping[str, Any]) -> dict[str, Any]:
    given = document.get(section, {})
    key, _, usual = NAMED.get(section, ("", {}, ""))
    name = given.get(key, usual) if key else ""
    return {**({key: name} if key else {}), **_defaults(section, name), **given}


_flats: dict[tuple[str, int], tuple[Mapping[str, Any], dict[str, Any]]] = {}
"""Flat sections by name and place in memory; the section itself is kept with them, so that its place stays its own."""


def flat_with_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same as dotted keys; equal sections, which runs share, are made flat once."""
    found = _defaults("", "") | {key: value for key, value in document.items() if not isinstance(value, Mapping)}
    for section in (*SECTIONS, *(key for key, value in document.items() if isinstance(value, Mapping))):
        given = document.get(section, _NONE)
        known = _flats.get((section, id(given)))
        if known is None:
            if len(_flats) > 1 << 14:
                _flats.clear()
            flat = {f"{section}.{name}": value for name, value in _filled(section, document).items()}
            _flats[section, id(given)] = known = (given, flat)
        found |= known[1]
    return found


_NONE: dict[str, Any] = {}


@cache
def _defaults(section: str, name: str) -> dict[str, Any]:
    """The defaults of a section; user code is not imported to find them."""
    try:
        settings = {} if is_own(name) else settings_for(section, name)
    except KeyError:  # the partition of a dataset with its own sites, or a name that fedfew no longer has
        return {}
    known = {key: setting.default for key, setting in settings.items()}
    return {key: value for key, value in known.items() if isinstance(value, int | float | str | list | tuple)}
