"""The config: TOML, a preset or a dict, checked against the settings of what it names; faults are reported together."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedfew.aggregators import AGGREGATORS
from fedfew.config.checks import SITES, misfits, scenario_of, unused_objective
from fedfew.config.files import parse, presets
from fedfew.config.method import method_of
from fedfew.config.names import entry_of, is_own, own_code, refuse_code
from fedfew.config.sections import NAMED, PLAIN, SECTIONS, settings_for
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.settings import Setting
from fedfew.data import DATASETS
from fedfew.methods import METHODS

Table = dict[str, Any]


_adapter = cache(TypeAdapter)  # creating one costs a hundred times as much as using it


def _fits_toml(value: Any) -> bool:
    """Whether a default can be written to run.toml; None, for example, cannot, and is left to the function."""
    return all(map(_fits_toml, value)) if isinstance(value, list | tuple) else isinstance(value, int | float | str)


@dataclass(frozen=True)
class Config:
    """A checked config: every key has its value, defaults included; ``document`` is what run.toml holds."""

    document: Table

    def __getitem__(self, path: str) -> Any:
        """``config["partition.mu"]``"""
        value: Any = self.document
        for part in path.split("."):
            value = value[part]
        return value

    def with_(self, changes: Mapping[str, Any]) -> "Config":
        """A copy with the values of some dotted keys replaced."""
        return Config(apply_overrides(self.document, changes))

    def options(self, section: str) -> Table:
        """The settings of a section, without the key that names it."""
        key = NAMED[section][0] if section in NAMED else ""
        return {name: value for name, value in self.document[section].items() if name != key}


def read(source: str | Path | Table) -> tuple[Table, str]:
    """The table of a preset, a TOML file or a dict, merged with its base, and its name for errors."""
    return _merged(source, (), None)


def _merged(
    source: str | Path | Table, above: tuple[str, ...], allow_code: Collection[str] | None
) -> tuple[Table, str]:
    table, place, folder = (dict(source), "config", Path()) if isinstance(source, dict) else parse(source)
    if allow_code is not None:
        refuse_code(table, allow_code, place)
    base = table.pop("base", None)
    if base is None:
        return _absolute_paths(table, folder), place
    if not isinstance(base, str):
        what = f"base = {base!r} is not a name"
        raise FedfewError("E103", place, what, "Give the name of a preset or TOML file in quotes")
    chain = (*above, str(Path(place).resolve()) if Path(place).is_file() else place)
    below = base if base in presets() else str(folder / Path(base).expanduser())
    if below in chain or str(Path(below).resolve()) in chain:
        raise FedfewError("E118", place, f"base = {base!r} leads back to itself")
    return _absolute_paths(apply_overrides(_merged(below, chain, allow_code)[0], flat(table)), folder), place


def load(
    source: str | Path | Table,
    overrides: Mapping[str, Any] | None = None,
    allow_code: Collection[str] | None = None,
) -> Config:
    """A checked config from a preset's name, a file or a table, with dotted overrides applied.

    ``allow_code`` is for a file that was found rather than named by the person who runs the command: of the user's own
    code, only these names may occur in it. The overrides may name any.
    """
    if allow_code is not None:
        allow_code = (*allow_code, *own_code(apply_overrides({}, overrides or {})).values())
    table, place = _merged(source, (), allow_code)
    config = check(_absolute_paths(apply_overrides(table, overrides or {}), Path()), place, allow_code)
    if any(key.startswith("objective.") for key in overrides or {}) and (fault := unused_objective(config.document)):
        raise ConfigErrors([fault])
    return config


def _absolute_paths(table: Table, folder: Path) -> Table:
    """Paths in a config file are relative to its folder, others to the current one; run.toml has absolute paths."""
    if isinstance(start := table.get("start"), str) and start:
        table = table | {"start": str((folder / Path(start).expanduser()).absolute())}
    match table.get("model"):
        case {"name": "transformers", "source": str(source)} if source:
            place = folder / Path(source).expanduser()
            if place.is_dir():  # anything else is a name on the hub
                table = table | {"model": {**table["model"], "source": str(place.absolute())}}
    match table.get("dataset"):
        case {"name": str(name), "path": str(path)} if name in DATASETS and path:
            place = folder / Path(path).expanduser()
            return table | {"dataset": {**table["dataset"], "path": str(place.absolute())}}
    return table


def flat(table: Table) -> dict[str, Any]:
    """A table as dotted keys, like overrides."""
    found: dict[str, Any] = {}
    for section, value in table.items():
        found |= {f"{section}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {section: value}
    return found


def apply_overrides(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table with dotted keys replaced.

    Naming another method (model, partition, …) drops those settings of the old one that the new one does not have;
    settings that both have stay, so that methods can be compared with all else equal.
    """
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for path, value in overrides.items():
        section, _, key = path.rpartition(".")
        if not section:
            merged[key] = value
            continue
        target = merged.setdefault(section, {})
        if not isinstance(target, dict):
            raise FedfewError("E103", path, f"{section} is a value, not a section")
        names = NAMED.get(section)
        if names and key == names[0] and target.get(key, names[2]) != value and _is_known(section, value):
            known = settings_for(section, value) if value != "auto" else {}
            asked = {name.rpartition(".")[2] for name in overrides if name.rpartition(".")[0] == section}
            for old in set(target) - set(known) - asked:
                del target[old]
        target[key] = value
    return merged


def _is_known(section: str, name: Any) -> bool:
    return isinstance(name, str) and (name == "auto" or name in NAMED[section][1] or is_own(name))


def check(table: Table, place: str = "config", allow_code: Collection[str] | None = ()) -> Config:
    """Fill in the defaults and check every key; raises ConfigErrors with all errors.

    The user's own code must be in ``allow_code``, or that is None because the table is the user's own.
    """
    if allow_code is not None:
        refuse_code(table, allow_code, place)
    faults: list[FedfewError] = []
    known_top = [*settings_for("", ""), *SECTIONS]
    general = {key: value for key, value in table.items() if key not in SECTIONS}
    document = _section("", general, "", place, faults, known_top)
    if isinstance(dataset := table.get("dataset"), dict) and brings_sites(dataset.get("name")):
        table = _with_sites(table, place, faults)
    table = _on_features(table)
    for section in SECTIONS:
        given = table.get(section, {})
        if section == "engine" and isinstance(given, dict) and "stack" in given:  # a setting of earlier versions
            given = _without_stack(given, place, faults)
        if not isinstance(given, dict):
            faults.append(FedfewError("E103", place, f"{section} = {given!r} is not a section", f"Write [{section}]"))
            continue
        document[section] = _named_section(section, dict(given), place, faults)
    if not faults:
        faults += [fault for fault in _cross_checks(document, place) if fault]
    if faults:
        raise ConfigErrors(faults)
    return Config(document)


def check_part(section: str, given: Table, place: str, allow_code: Collection[str]) -> Table:
    """One section from a file, e.g. a model file's [model], checked like that of a config."""
    refuse_code({section: given}, allow_code, place)
    faults: list[FedfewError] = []
    checked = _named_section(section, dict(given), place, faults)
    if faults:
        raise ConfigErrors(faults)
    return checked


def _on_features(table: Table) -> Table:
    """On a frozen backbone, a method without settings in the config is replaced by its ``on_features`` method."""
    match table:
        case {"method": {"name": str(method), **given}, "model": {"name": str(model), **options}} if not given:
            known = settings_for("model", model) if _is_known("model", model) else {}
            frozen = "train" in known and options.get("train", known["train"].default) == "head"
            if frozen and method in METHODS and (better := METHODS[method].on_features):
                return table | {"method": {"name": better}}
    return table


def brings_sites(name: Any) -> bool:
    """Whether a dataset declares in advance that it has its own sites; for others this is known only after loading."""
    return getattr(DATASETS.get(name), "brings_sites", False) if isinstance(name, str) else False


def _without_stack(engine: Table, place: str, faults: list[FedfewError]) -> Table:
    if engine["stack"] != 1:
        what = f"engine.stack = {engine['stack']!r}, but clients are no longer trained in stacked passes"
        faults.append(FedfewError("E104", place, what, "Remove the line; fleet.workers sets how many train at a time"))
    return {key: value for key, value in engine.items() if key != "stack"}


def _with_sites(table: Table, place: str, faults: list[FedfewError]) -> Table:
    """The data has its own clients, so there is nothing to partition."""
    given = table.get("partition", {"kind": SITES})
    if given != {"kind": SITES}:
        what = "partition.* has no effect for a dataset with its own sites"
        faults.append(FedfewError("E113", place, what, "Remove the section [partition]"))
    return table | {"partition": {"kind": SITES}}


def _named_section(section: str, given: Table, place: str, faults: list[FedfewError]) -> Table:
    if section not in NAMED:
        return _section(section, given, "", place, faults)
    key, registry, default = NAMED[section]
    name = given.pop(key, default)
    try:
        if not isinstance(name, str):
            raise FedfewError("E103", place, f"{section}.{key} = {name!r} is not a name", "Give a name in quotes")
        if (section, name) in (("aggregator", "auto"), ("partition", SITES)):
            return {key: name} | _section(section, given, name, place, faults, settings={})
        if section == "fleet" or not is_own(name):
            _known_name(section, key, name, registry, place)
        return {key: name} | _section(section, given, name, place, faults)
    except FedfewError as fault:
        faults.append(fault)
        return {key: name}


def _known_name(section: str, key: str, name: str, registry: Mapping[str, Any], place: str) -> None:
    if name not in registry:
        close = difflib.get_close_matches(name, registry, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise FedfewError(
            "E105", place, f"{section}.{key} = {name!r} is unknown{hint}", f"Known: {', '.join(sorted(registry))}"
        )


def _closest(key: str, known: list[str]) -> list[str]:
    """The key that was probably meant: one with a similar spelling, or one that is a word of it."""
    words = [name for name in known if name in key.split("_") or key in name.split("_")]
    return words[:1] or difflib.get_close_matches(key, known, 1, cutoff=0.5)


def _sections_with(key: str) -> list[str]:
    """The sections to which a key outside any section belongs, e.g. server.lr and client.lr."""
    named = {section: default for section, (_, _, default) in NAMED.items() if default != "auto"}
    return [f"{section}.{key}" for section in (*named, *PLAIN) if key in settings_for(section, named.get(section, ""))]


def _section(
    section: str,
    given: Table,
    name: str,
    place: str,
    faults: list[FedfewError],
    candidates: list[str] | None = None,
    settings: dict[str, Setting] | None = None,
) -> Table:
    """One section's values: given ones checked, the others by default."""
    settings = settings_for(section, name) if settings is None else settings
    prefix = f"{section}." if section else ""
    for key in given.keys() - settings.keys():
        close = _closest(key, candidates or list(settings)) or ([] if section else _sections_with(key))
        hint = f"; did you mean {' or '.join(prefix + name for name in close)}?" if close else ""
        about = f" ({NAMED[section][0]} = {name!r})" if section in NAMED else ""
        remedy = "" if close else f"Known here: {', '.join(candidates or settings) or 'nothing'}"
        faults.append(FedfewError("E104", place, f"unknown key {prefix}{key}{about}{hint}", remedy))
    values: Table = {}
    for key, setting in settings.items():
        if key not in given:
            values |= {key: setting.default} if _fits_toml(setting.default) else {}
            continue
        try:
            values[key] = _adapter(setting.annotation).validate_python(given[key], strict=True)
            if isinstance(values[key], float) and not math.isfinite(values[key]):
                what = f"{prefix}{key} = {given[key]!r} should be a finite number"
                faults.append(FedfewError("E103", place, what, f"It means: {setting.doc}"))
        except ValidationError as error:
            problem = error.errors()[0]["msg"].replace("Input should", "should")
            faults.append(
                FedfewError("E103", place, f"{prefix}{key} = {given[key]!r} {problem}", f"It means: {setting.doc}")
            )
    return values


def _cross_checks(document: Table, place: str) -> list[FedfewError | None]:
    """Faults that no single key shows."""
    entry = entry_of(document["method"]["name"])
    if document["aggregator"]["name"] == "auto":
        usual = entry.aggregator
        document["aggregator"] = {"name": usual} | {
            key: setting.default for key, setting in settings_for("aggregator", usual).items()
        }
    chosen = document["aggregator"]["name"]
    if chosen in entry.unfit:
        fits = ", ".join(name for name in AGGREGATORS if name not in entry.unfit)
        what = f"aggregator.name = {chosen!r} does not fit method {document['method']['name']}: {entry.unfit[chosen]}"
        return [FedfewError("E107", place, what, f"These fit: {fits}")]
    try:
        made = method_of(document)
        for path, value in entry.settle(made, scenario_of(document)).items():
            section, _, key = path.partition(".")
            document[section][key] = value
        faults = list(misfits(document, entry, made))
    except FedfewError as fault:
        faults = [fault]
    return [FedfewError(fault.code, f"{place}: {fault.place}", fault.what, fault.remedy) for fault in faults]
