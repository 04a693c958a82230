"""The config: TOML, a preset or a dict, checked against the settings of what it names; faults are reported together."""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from pathlib import Path
from types import new_class
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fedfew.aggregators import AGGREGATORS
from fedfew.config import REGISTRIES
from fedfew.config.checks import misfits, unused_objective
from fedfew.config.names import (
    OPTIONAL_PARTS,
    SITES,
    Named,
    find,
    imported,
    is_foreign,
    is_own,
    own_code,
    refuse_code,
)
from fedfew.config.tables import (
    Table,
    absolute_paths,
    adapted,
    apply_overrides,
    brings_sites,
    for_head,
    named_on_hub,
    read,
    with_data_seed,
    with_validation,
)
from fedfew.config.tree import (
    AUTO,
    NAMED,
    PLAIN,
    SECTIONS,
    Config,
    DatasetSettings,
    FleetSettings,
    General,
    ModelSettings,
    settings_for,
)
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.samples import OwnView
from fedfew.core.settings import Setting, settings_of

T = TypeVar("T")
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def load(
    source: str | Path | Table,
    overrides: Mapping[str, Any] | None = None,
    allow_code: Collection[str] | None = None,
    *,
    keep_settings: bool = False,
) -> Config:
    """A checked config from a preset's name, a file or a table, with dotted overrides applied.

    A method that the overrides name has its published settings and aggregator; with ``keep_settings`` it has those of
    the config's method, as far as they have the same name.

    ``allow_code`` is for a file that was found rather than named by the person who runs the command: of the user's own
    code, only these names may occur in it. The overrides may name any.
    """
    overrides = named_on_hub(overrides or {}, "dataset.")
    if allow_code is not None:
        allow_code = (*allow_code, *own_code(apply_overrides({}, overrides)).values())
    table, where = read(source, allow_code)
    table = apply_overrides(adapted(table, overrides, keep_settings), overrides)
    config = check(absolute_paths(table, Path()), where, allow_code)
    if any(key.startswith("objective.") for key in overrides) and (fault := unused_objective(config)):
        raise ConfigErrors([fault])
    return config


def check(table: Table, where: str = "config", allow_code: Collection[str] | None = ()) -> Config:
    """Fill in the defaults, check every key and build every part; raises ConfigErrors with all errors.

    The user's own code must be in ``allow_code``, or that is None because the table is the user's own.
    """
    if allow_code is not None:
        refuse_code(table, allow_code, where)
    read = _Reader(with_validation(with_data_seed(for_head(table))), where)
    read.bring_sites()
    general = read.part("", General)
    named = {section: read.named(section) for section in NAMED}
    parts = {section: read.part(section, kind, general.rounds) for section, kind in PLAIN.items()}
    read.raise_faults()
    try:
        config = _built(general, named, parts, read.ordered())
        faults = list(misfits(config))
    except FedfewError as fault:
        faults = [fault]
    read.faults += [FedfewError(fault.code, f"{where}: {fault.where}", fault.message, fault.remedy) for fault in faults]
    read.raise_faults()
    return config


def check_part(section: str, options: Table, where: str, allow_code: Collection[str]) -> Table:
    """One section from a file, e.g. a model file's [model], checked like that of a config."""
    refuse_code({section: options}, allow_code, where)
    read = _Reader({section: options}, where)
    read.named(section)
    read.raise_faults()
    checked: Table = read.document[section]
    return checked


def _built(general: General, named: Mapping[str, Named[Any]], parts: Table, document: Table) -> Config:
    """The tree, and in it the method, which decides what the config leaves open."""
    method, aggregator, source, fleet = (named[key] for key in ("method", "aggregator", "dataset", "fleet"))
    entry = find("method", method.name)
    if aggregator.name == AUTO:
        options = {key: setting.default for key, setting in settings_for("aggregator", entry.aggregator).items()}
        aggregator = Named(entry.aggregator, find("aggregator", entry.aggregator), options)
        document |= {"aggregator": {"name": aggregator.name} | options}
    if aggregator.name in entry.unfit:
        fits = ", ".join(name for name in AGGREGATORS if name not in entry.unfit)
        reason = f"does not fit method {method.name}: {entry.unfit[aggregator.name]}"
        raise FedfewError("E107", "aggregator.name", f"{aggregator.name!r} {reason}", f"These fit: {fits}")
    objective = named["objective"]()
    taken = {part: (parts | {"objective": objective})[part] for part in OPTIONAL_PARTS if entry.takes(part)}
    made = entry.build(
        server=parts["server"], client=parts["client"], aggregator=aggregator, **taken, **method.settings
    )
    split = settings_of(DatasetSettings)
    own = {key: value for key, value in source.settings.items() if key not in split}
    config = Config(
        **vars(general),
        **parts,
        dataset=DatasetSettings(
            **{key: source.settings[key] for key in split}, source=Named(source.name, source.entry, own)
        ),
        partition=named["partition"],
        model=ModelSettings(**vars(named["model"])),
        method=made,
        method_name=method.name,
        entry=entry,
        objective=objective,
        objective_name=named["objective"].name,
        aggregator=aggregator,
        fleet=FleetSettings(**fleet.settings, kind=fleet.name),
        document=document,
    )
    for path, value in entry.settled(made, config.scenario).items():
        section, _, key = path.partition(".")
        document[section][key] = value
        config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    return config


@dataclass
class _Reader:
    """Reads a table section by section, and collects every fault."""

    table: Table
    where: str
    faults: list[FedfewError] = field(default_factory=list)
    document: Table = field(default_factory=dict)

    def ordered(self) -> Table:
        """Every key with its value: those outside any section first."""
        plain = {key: value for key, value in self.document.items() if key not in SECTIONS}
        return plain | {section: self.document[section] for section in SECTIONS}

    def raise_faults(self) -> None:
        if self.faults:
            raise ConfigErrors(self.faults)

    def bring_sites(self) -> None:
        """Name no partition for a dataset that declares in advance that it has its own sites."""
        name = self._section("dataset").get("name")
        if isinstance(name, str) and brings_sites(name):
            if self.table.get("partition", {"kind": SITES}) != {"kind": SITES}:
                why = "partition.* has no effect for a dataset with its own sites"
                self.faults.append(FedfewError("E113", self.where, why, "Remove the section [partition]"))
            self.table = self.table | {"partition": {"kind": SITES}}

    def part(self, section: str, kind: Callable[..., T], rounds: int = 0) -> T:
        """A section as an object; keys with faults have their default."""
        values = self._values(section, self._section(section), settings_for(section, ""))
        self.document |= {section: dict(values)} if section else values
        more: Table = {"rounds": rounds} if "rounds" in signature(kind).parameters and section else {}
        if "augment" in values:
            more["own"] = self._own_view(f"{section}.augment", values["augment"])
        return kind(**values, **more)

    def named(self, section: str) -> Named[Any]:
        """What a section names, with its settings."""
        key, registry, default = NAMED[section]
        options = dict(self._section(section))
        name = options.pop(key, default)
        entry: Callable[..., Any] = dict
        known: dict[str, Setting] = {}
        try:
            if not isinstance(name, str):
                why = f"{section}.{key} = {name!r} is not a name"
                raise FedfewError("E103", self.where, why, "Give a name in quotes")
            if (section, name) == ("partition", SITES):
                entry = Named.sites().entry
            elif (section, name) != ("aggregator", AUTO):
                if name not in registry and (section == "fleet" or not is_own(name)):
                    close = difflib.get_close_matches(name, registry, 1)
                    hint = f"; did you mean {close[0]}?" if close else ""
                    why = f"{section}.{key} = {name!r} is unknown{hint}"
                    raise FedfewError("E105", self.where, why, f"Known: {', '.join(sorted(registry))}")
                entry = dict if section in ("fleet", "method") else find(section, name)
                known = settings_for(section, name)
        except FedfewError as fault:
            self.faults.append(fault)
            options = {}
        values = self._values(section, options, known, str(name))
        self.document[section] = {key: name} | values
        return Named(name, entry, values, section in REGISTRIES and isinstance(name, str) and is_foreign(section, name))

    def _own_view(self, key: str, name: str) -> OwnView | None:
        """The user's own augmentation, if the config names one."""
        try:
            return OwnView(imported(name, key), key) if is_own(name) else None
        except FedfewError as fault:
            self.faults.append(fault)
            return None

    def _section(self, section: str) -> Table:
        """What the table says in a section."""
        if not section:
            return {key: value for key, value in self.table.items() if key not in SECTIONS}
        options = self.table.get(section, {})
        if isinstance(options, dict):
            return options
        fault = FedfewError("E103", self.where, f"{section} = {options!r} is not a section", f"Write [{section}]")
        if fault.message not in [known.message for known in self.faults]:
            self.faults.append(fault)
        return {}

    def _values(self, section: str, options: Table, known: Mapping[str, Setting], name: str = "") -> Table:
        """A value for every setting: given ones checked, the others by default."""
        prefix = f"{section}." if section else ""
        values = {key: setting.default for key, setting in known.items() if _fits_toml(setting.default)}
        try:
            checked = _adapter(tuple((key, known[key].annotation) for key in known)).validate_python(options)
        except ValidationError as error:
            problems = {problem["loc"][0]: problem for problem in reversed(error.errors(include_url=False))}
            for key, problem in reversed(problems.items()):
                if problem["type"] == "extra_forbidden":
                    self.faults.append(self._unknown(section, str(key), name, list(known)))
                    continue
                why = f"{prefix}{key} = {options[str(key)]!r} {problem['msg'].replace('Input should', 'should')}"
                self.faults.append(FedfewError("E103", self.where, why, f"It means: {known[str(key)].doc}"))
            return values
        return {key: {**values, **checked}[key] for key in known if key in values or key in checked}

    def _unknown(self, section: str, key: str, name: str, known: list[str]) -> FedfewError:
        """The fault of an unknown key, with the one that was probably meant."""
        prefix, candidates = (f"{section}.", known) if section else ("", [*known, *SECTIONS])
        close = _closest(key, candidates) or ([] if section else _sections_with(key))
        hint = f"; did you mean {' or '.join(prefix + name for name in close)}?" if close else ""
        about = f" ({NAMED[section][0]} = {name!r})" if section in NAMED else ""
        remedy = "" if close else f"Known here: {', '.join(candidates) or 'nothing'}"
        return FedfewError("E104", self.where, f"unknown key {prefix}{key}{about}{hint}", remedy)


def _fits_toml(value: Any) -> bool:
    """Whether a default can be written to run.toml; None, for example, cannot, and is left to the function."""
    return all(map(_fits_toml, value)) if isinstance(value, list | tuple) else isinstance(value, int | float | str)


@cache
def _adapter(fields: tuple[tuple[str, Any], ...]) -> TypeAdapter[Table]:
    """Checks the values of a section; creating one costs a hundred times as much as using it."""
    body = {"__annotations__": dict(fields), "__pydantic_config__": STRICT}
    section = new_class("Section", (TypedDict,), {"total": False}, lambda namespace: namespace.update(body))
    return TypeAdapter(section)


def _closest(key: str, known: list[str]) -> list[str]:
    """The key that was probably meant: one with a similar spelling, or one that is a word of it."""
    words = [name for name in known if name in key.split("_") or key in name.split("_")]
    return words[:1] or difflib.get_close_matches(key, known, 1, cutoff=0.5)


def _sections_with(key: str) -> list[str]:
    """The sections to which a key outside any section belongs, e.g. server.lr and client.lr."""
    named = {section: default for section, (_, _, default) in NAMED.items() if default != "auto"}
    return [f"{section}.{key}" for section in (*named, *PLAIN) if key in settings_for(section, named.get(section, ""))]
