"""The config: TOML, a preset or a dict, checked against the settings of what it names; faults are reported together."""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import new_class
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fedfew.aggregators import AGGREGATORS
from fedfew.config.checks import misfits, unused_objective
from fedfew.config.names import OPTIONAL_PARTS, SITES, Named, entry_of, find, imported, is_own, own_code, refuse_code
from fedfew.config.sections import AUTO, NAMED, PLAIN, SECTIONS, settings_for
from fedfew.config.tables import Table, absolute_paths, apply_overrides, is_known, merged
from fedfew.config.tree import Config, DatasetSettings, FleetSettings, General, Model
from fedfew.core.engine import Engine
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.evaluation import Evaluation
from fedfew.core.samples import OwnView
from fedfew.core.settings import Setting, settings_of
from fedfew.core.types import Method
from fedfew.data import DATASETS
from fedfew.data.shares import ClientLabels
from fedfew.methods import METHODS
from fedfew.methods.entry import Entry
from fedfew.objectives.pseudo_labels import PseudoLabel
from fedfew.runtime.cohort import Availability
from fedfew.runtime.gate import Gate
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import ClientSGD, LocalSGD
from fedfew.training.supervised import Supervised
from fedfew.transforms import Compression, NormPolicy, Privacy

T = TypeVar("T")
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


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
    table, place = merged(source, (), allow_code)
    config = check(absolute_paths(apply_overrides(table, overrides or {}), Path()), place, allow_code)
    if any(key.startswith("objective.") for key in overrides or {}) and (fault := unused_objective(config)):
        raise ConfigErrors([fault])
    return config


def check(table: Table, place: str = "config", allow_code: Collection[str] | None = ()) -> Config:
    """Fill in the defaults, check every key and build every part; raises ConfigErrors with all errors.

    The user's own code must be in ``allow_code``, or that is None because the table is the user's own.
    """
    if allow_code is not None:
        refuse_code(table, allow_code, place)
    read = _Reader(_on_features(table), place)
    if isinstance(dataset := table.get("dataset"), dict) and brings_sites(dataset.get("name")):
        read.table = _with_sites(read.table, place, read.faults)
    general = read.part("", General)
    method, objective, aggregator = (read.named(section) for section in ("method", "objective", "aggregator"))
    config = Config(
        **vars(general),
        dataset=read.dataset(),
        partition=read.named("partition"),
        model=read.model(),
        method=Method(),
        method_name=method.name,
        entry=Entry(Method),
        objective=PseudoLabel(),
        objective_name=objective.name,
        aggregator=aggregator,
        server=read.server(general.rounds),
        client=read.client(general.rounds),
        client_labels=read.part("client_labels", ClientLabels),
        vote=read.part("vote", Voting, rounds=general.rounds),
        norm=read.part("norm", NormPolicy),
        privacy=read.part("privacy", Privacy),
        compression=read.part("compression", Compression),
        availability=read.part("availability", Availability),
        gate=read.part("gate", Gate),
        evaluate=read.part("evaluate", Evaluation),
        engine=read.part("engine", Engine),
        fleet=read.fleet(),
        document={},
    )
    read.raise_faults()
    try:
        config = _with_method(config, method.settings, objective, read.ordered())
        faults = list(misfits(config))
    except FedfewError as fault:
        faults = [fault]
    read.faults += [FedfewError(fault.code, f"{place}: {fault.place}", fault.what, fault.remedy) for fault in faults]
    read.raise_faults()
    return config


def check_part(section: str, given: Table, place: str, allow_code: Collection[str]) -> Table:
    """One section from a file, e.g. a model file's [model], checked like that of a config."""
    refuse_code({section: given}, allow_code, place)
    read = _Reader({section: given}, place)
    read.named(section)
    read.raise_faults()
    checked: Table = read.document[section]
    return checked


def _with_method(config: Config, settings: Mapping[str, Any], objective: Named[Any], document: Table) -> Config:
    """The config with its method, and with what the method decides where the config leaves it open."""
    entry, aggregator = entry_of(config.method_name), config.aggregator
    if aggregator.name == AUTO:
        usual = entry.aggregator
        options = {key: setting.default for key, setting in settings_for("aggregator", usual).items()}
        aggregator = Named(usual, find("aggregator", usual, AGGREGATORS), options)
        document["aggregator"] = {"name": usual} | options
    if aggregator.name in entry.unfit:
        fits = ", ".join(name for name in AGGREGATORS if name not in entry.unfit)
        reason = f"does not fit method {config.method_name}: {entry.unfit[aggregator.name]}"
        raise FedfewError("E107", "aggregator.name", f"{aggregator.name!r} {reason}", f"These fit: {fits}")
    config = replace(config, entry=entry, aggregator=aggregator, objective=objective())
    parts = {part: getattr(config, part) for part in OPTIONAL_PARTS if entry.takes(part)}
    made = entry.build(server=config.server, client=config.client, aggregator=config.aggregator, **parts, **settings)
    for path, value in entry.settle(made, config.scenario).items():
        section, _, key = path.partition(".")
        document[section][key] = value
        if section == "method":
            made = replace(made, **{key: value})
        else:
            config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    return replace(config, method=made, document=document)


def _on_features(table: Table) -> Table:
    """On a frozen backbone, a method without settings in the config is replaced by its ``on_features`` method."""
    match table:
        case {"method": {"name": str(method), **given}, "model": {"name": str(model), **options}} if not given:
            known = settings_for("model", model) if is_known("model", model) else {}
            frozen = "train" in known and options.get("train", known["train"].default) == "head"
            if frozen and method in METHODS and (better := METHODS[method].on_features):
                return table | {"method": {"name": better}}
    return table


def brings_sites(name: Any) -> bool:
    """Whether a dataset declares in advance that it has its own sites; for others this is known only after loading."""
    return getattr(DATASETS.get(name), "brings_sites", False) if isinstance(name, str) else False


def _with_sites(table: Table, place: str, faults: list[FedfewError]) -> Table:
    """The data have their own clients, so there is nothing to partition."""
    given = table.get("partition", {"kind": SITES})
    if given != {"kind": SITES}:
        what = "partition.* has no effect for a dataset with its own sites"
        faults.append(FedfewError("E113", place, what, "Remove the section [partition]"))
    return table | {"partition": {"kind": SITES}}


@dataclass
class _Reader:
    """Reads a table section by section, and collects every fault."""

    table: Table
    place: str
    faults: list[FedfewError] = field(default_factory=list)
    document: Table = field(default_factory=dict)

    def ordered(self) -> Table:
        """Every key with its value: those outside any section first."""
        plain = {key: value for key, value in self.document.items() if key not in SECTIONS}
        return plain | {section: self.document[section] for section in SECTIONS}

    def raise_faults(self) -> None:
        if self.faults:
            raise ConfigErrors(self.faults)

    def part(self, section: str, kind: Callable[..., T], **more: Any) -> T:
        """A section as an object; keys with faults have their default."""
        values = self._values(section, self._given(section), settings_for(section, ""))
        if section:
            self.document[section] = values
        else:
            self.document |= values
        return kind(**values, **more)

    def server(self, rounds: int) -> Supervised:
        values = self.part("server", dict[str, Any])
        sgd = LocalSGD(**{key: values.pop(key) for key in settings_of(LocalSGD)}, rounds=rounds)
        return Supervised(sgd, **values, own=self._own_view("server", values["augment"]))

    def client(self, rounds: int) -> ClientSGD:
        client = self.part("client", ClientSGD, rounds=rounds)
        return replace(client, own=self._own_view("client", client.augment))

    def dataset(self) -> DatasetSettings:
        chosen, split = self.named("dataset"), settings_of(DatasetSettings)
        own = {key: value for key, value in chosen.settings.items() if key not in split}
        values = {key: value for key, value in chosen.settings.items() if key in split}
        return DatasetSettings(**values, source=Named(chosen.name, chosen.entry, own))

    def model(self) -> Model:
        chosen = self.named("model")
        return Model(chosen.name, chosen.entry, chosen.settings)

    def fleet(self) -> FleetSettings:
        chosen = self.named("fleet")
        return FleetSettings(**chosen.settings, kind=chosen.name)

    def named(self, section: str) -> Named[Any]:
        """What a section names, with its settings."""
        key, registry, default = NAMED[section]
        given = dict(self._given(section))
        name = given.pop(key, default)
        entry: Callable[..., Any] = dict
        known: dict[str, Setting] = {}
        try:
            if not isinstance(name, str):
                what = f"{section}.{key} = {name!r} is not a name"
                raise FedfewError("E103", self.place, what, "Give a name in quotes")
            if (section, name) == ("partition", SITES):
                entry = Named.sites().entry
            elif (section, name) != ("aggregator", AUTO):
                if section == "fleet" or not is_own(name):
                    _known_name(section, key, name, registry, self.place)
                entry = dict if section in ("fleet", "method") else find(section, name, registry)
                known = settings_for(section, name)
        except FedfewError as fault:
            self.faults.append(fault)
            given = {}
        values = self._values(section, given, known, str(name))
        self.document[section] = {key: name} | values
        return Named(name, entry, values)

    def _own_view(self, section: str, name: str) -> OwnView | None:
        """The user's own augmentation, if the config names one."""
        try:
            key = f"{section}.augment"
            return OwnView(imported(name, key), key) if is_own(name) else None
        except FedfewError as fault:
            self.faults.append(fault)
            return None

    def _given(self, section: str) -> Table:
        """What the table says in a section."""
        if not section:
            return {key: value for key, value in self.table.items() if key not in SECTIONS}
        given = self.table.get(section, {})
        if isinstance(given, dict):
            return given
        self.faults.append(
            FedfewError("E103", self.place, f"{section} = {given!r} is not a section", f"Write [{section}]")
        )
        return {}

    def _values(self, section: str, given: Table, known: Mapping[str, Setting], name: str = "") -> Table:
        """A value for every setting: given ones checked, the others by default."""
        prefix = f"{section}." if section else ""
        values = {key: setting.default for key, setting in known.items() if _fits_toml(setting.default)}
        try:
            checked = _adapter(tuple((key, known[key].annotation) for key in known)).validate_python(given)
        except ValidationError as error:
            problems = {problem["loc"][0]: problem for problem in reversed(error.errors(include_url=False))}
            for key, problem in reversed(problems.items()):
                if problem["type"] == "extra_forbidden":
                    self.faults.append(self._unknown(section, str(key), name, list(known)))
                    continue
                what = f"{prefix}{key} = {given[str(key)]!r} {problem['msg'].replace('Input should', 'should')}"
                self.faults.append(FedfewError("E103", self.place, what, f"It means: {known[str(key)].doc}"))
            return values
        return {key: {**values, **checked}[key] for key in known if key in values or key in checked}

    def _unknown(self, section: str, key: str, name: str, known: list[str]) -> FedfewError:
        """The fault of an unknown key, with the one that was probably meant."""
        prefix, candidates = (f"{section}.", known) if section else ("", [*known, *SECTIONS])
        close = _closest(key, candidates) or ([] if section else _sections_with(key))
        hint = f"; did you mean {' or '.join(prefix + name for name in close)}?" if close else ""
        about = f" ({NAMED[section][0]} = {name!r})" if section in NAMED else ""
        remedy = "" if close else f"Known here: {', '.join(candidates) or 'nothing'}"
        return FedfewError("E104", self.place, f"unknown key {prefix}{key}{about}{hint}", remedy)


def _fits_toml(value: Any) -> bool:
    """Whether a default can be written to run.toml; None, for example, cannot, and is left to the function."""
    return all(map(_fits_toml, value)) if isinstance(value, list | tuple) else isinstance(value, int | float | str)


@cache
def _adapter(fields: tuple[tuple[str, Any], ...]) -> TypeAdapter[Table]:
    """Checks the values of a section; creating one costs a hundred times as much as using it."""
    body = {"__annotations__": dict(fields), "__pydantic_config__": STRICT}
    section = new_class("Section", (TypedDict,), {"total": False}, lambda namespace: namespace.update(body))
    return TypeAdapter(section)


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
