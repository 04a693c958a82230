"""An older run's config with the settings that have been added since, so that old and new runs can be compared."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedfew.config.names import is_own
from fedfew.config.schema import NAMED, SECTIONS, settings_for


def with_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """A run.toml with the defaults of today for every key that it does not have."""
    plain = {key: value for key, value in document.items() if key not in SECTIONS}
    filled: dict[str, Any] = {**_defaults("", ""), **plain}
    for section in SECTIONS:
        given = document.get(section, {})
        key, _, usual = NAMED.get(section, ("", {}, ""))
        name = given.get(key, usual) if key else ""
        filled[section] = ({key: name} if key else {}) | _defaults(section, name) | given
    return filled


@cache
def _defaults(section: str, name: str) -> dict[str, Any]:
    """The defaults of a section; a part of someone's own is not imported to find them."""
    try:
        settings = {} if is_own(name) else settings_for(section, name)
    except KeyError:  # the partition of a dataset that brings its sites, or a name that fedfew no longer has
        return {}
    known = {key: setting.default for key, setting in settings.items()}
    return {key: value for key, value in known.items() if isinstance(value, int | float | str | list | tuple)}
