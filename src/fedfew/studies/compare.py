"""Compares runs: mean and 95 % interval over seeds, and the paired difference to server-only or another method."""

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedfew.config.tree import NAMED
from fedfew.core.errors import FedfewError
from fedfew.core.extras import data_frame
from fedfew.runs.intervals import ALPHA, Interval, holm
from fedfew.runs.run import TITLES, Run
from fedfew.runs.summary import HEADLINE
from fedfew.studies.bounds import BASELINE, METHOD, Flat, Pairing, hashable, settings, varying
from fedfew.studies.notes import NOT_SEARCHED, row_notes, table_notes
from fedfew.studies.tables import as_rows, to_html, to_text

if TYPE_CHECKING:
    from pandas import DataFrame

SEEDS = ("seed", "dataset.seed")
SHORT = {"availability": "availability.kind"} | {section: f"{section}.{key}" for section, (key, *_) in NAMED.items()}
"""Short names in ``--by``: method for method.name, and so on."""
TEST_DATA = ("dataset.name", "dataset.path", "dataset.split", "dataset.test")
"""Runs that differ in these keys have different test images."""


@dataclass(frozen=True)
class Row:
    """The runs that share the values of the grouping keys."""

    key: dict[str, Any]
    accuracy: Interval
    difference: Interval | None
    """Difference to runs of the reference with the same seeds, data, labels, model and rounds."""
    bytes_up: float
    """Bytes that the clients send in a round, the mean over runs and rounds."""
    bytes_down: float
    runs: tuple[str, ...]
    rounds: int
    partial: bool
    unpublished: str = ""
    """Settings that are not as published, as text."""
    tuned: str = ""
    """How its settings were searched for, as text."""
    p: float | None = None
    """Of the difference, corrected for all rows of the table (Holm)."""

    @property
    def significant(self) -> bool | None:
        """Whether the difference is more than chance, all rows considered; None if that cannot be said."""
        return None if self.p is None else self.p < ALPHA

    @property
    def shown(self) -> dict[str, str]:
        """The key as tables show it: the method by its title, a setting that the row has not as a dash."""
        cells = {name: "–" if value is None else str(value) for name, value in self.key.items()}
        return cells | ({METHOD: TITLES.get(cells[METHOD], cells[METHOD])} if METHOD in cells else {})

    @property
    def label(self) -> str:
        known = [(name, text) for name, text in self.shown.items() if self.key[name] is not None]
        return ", ".join(text if name in SHORT.values() else f"{name} = {text}" for name, text in known)


@dataclass(frozen=True)
class Comparison:
    """A table of rows, which runs it leaves out, and why."""

    by: tuple[str, ...]
    measure: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    left_out: dict[str, str]
    against: str = BASELINE
    """The method that the others are compared with."""

    def to_frame(self) -> "DataFrame":
        """The rows as a pandas DataFrame, accuracies as fractions."""
        return data_frame(as_rows(self), "to_frame")

    def __str__(self) -> str:
        return to_text(self)

    def _repr_html_(self) -> str:
        """The table as shown in a notebook."""
        return to_html(self)


@dataclass(frozen=True, eq=False)
class Scored:
    """A run in the comparison, with its settings."""

    run: Run
    flat: Flat
    accuracy: float


def compare(
    runs: Sequence[Run],
    by: Sequence[str] | None = None,
    *,
    against: str = BASELINE,
    partial: bool = False,
    which: str = HEADLINE,
) -> Comparison:
    """Group runs by config keys (those that differ, if none are given) and compare the groups with a method.

    Unfinished runs are left out unless ``partial``; the same experiment counts once; mixed datasets are E114.
    """
    flats = [settings(run) for run in runs]
    differ = varying(flats)
    entries, left_out = _usable(runs, flats, differ, partial, which)
    if not entries:
        reasons = "; ".join(f"{path}: {why}" for path, why in left_out.items()) or "no run was given"
        raise FedfewError("E310", "compare", reasons, "Finish the runs, or add --partial to include them as they are")
    keys = _keys(by, entries) if by else _differing(entries, differ)
    _refuse_mixed(entries, keys)
    groups: dict[str, list[Scored]] = {}
    for entry in entries:
        groups.setdefault(json.dumps([entry.flat.get(key) for key in keys]), []).append(entry)
    pairing = Pairing((entry.run for entry in entries), against, keys)
    if not pairing and against != BASELINE:
        known = ", ".join(dict.fromkeys(entry.run.method for entry in entries))
        raise FedfewError("E103", "--against", f"no run of {against!r} is among these", f"Use one of: {known}")
    rows, notes = list[Row](), list[str]()
    for group in groups.values():
        row, faults = _row(group, keys, pairing, which)
        rows.append(row)
        same_method = len({entry.flat[METHOD] for entry in group}) == 1
        mixed = [key for key in _differing(group, differ)[same_method:] if key not in row.key]
        notes += row_notes(row, [entry.run for entry in group], mixed, faults)
    corrected = holm([row.difference.p if row.difference else None for row in rows])
    rows = [replace(row, p=p) for row, p in zip(rows, corrected, strict=True)]
    rows.sort(key=lambda row: -row.accuracy.mean)
    notes += table_notes(rows, [entry.run for entry in entries], pairing)
    return Comparison(tuple(keys), which, tuple(rows), tuple(dict.fromkeys(notes)), left_out, against)


def _usable(
    runs: Sequence[Run], flats: Sequence[Flat], differ: Sequence[str], partial: bool, which: str
) -> tuple[list[Scored], dict[str, str]]:
    kept: dict[tuple[Any, ...], Scored] = {}
    left_out: dict[str, str] = {}
    # of two runs of one experiment the finished one counts
    for run, flat in sorted(zip(runs, flats, strict=True), key=lambda pair: not pair[0].finished):
        identity = tuple(hashable(flat, key) for key in differ)
        if not run.finished and not partial:
            left_out[str(run.path)] = f"not finished, at round {run.done} of {run.planned}"
        elif (accuracy := run.accuracy(which)) is None:
            left_out[str(run.path)] = "has no accuracy yet"
        elif identity in kept:
            left_out[str(run.path)] = f"the same experiment as {kept[identity].run.path}"
        else:
            kept[identity] = Scored(run, flat, accuracy)
    return list(kept.values()), left_out


def _keys(by: Sequence[str], entries: Sequence[Scored]) -> list[str]:
    """The requested keys, written out; a key that no run has is refused."""
    keys = [SHORT.get(key, key) for key in by]
    known = set[str]().union(*(entry.flat for entry in entries))
    for key in keys:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise FedfewError(
                "E104", "--by", f"no run has a key {key}{hint}", "Use the keys of run.toml, e.g. partition.mu"
            )
    return list(dict.fromkeys(keys))


def _differing(entries: Sequence[Scored], differ: Iterable[str]) -> list[str]:
    """The method, and every key in which comparable runs differ."""
    keys = [METHOD]
    for key in differ:
        if key in SEEDS or key == METHOD:
            continue
        section = key.rpartition(".")[0]
        # settings of a method, a model, … are only compared among runs that share it; a method brings its aggregator
        within = [SHORT.get(section), METHOD if section == "aggregator" else None]
        values: dict[Any, set[Any]] = {}
        for flat in (entry.flat for entry in entries):
            if key in flat:
                shared = tuple(flat.get(name) for name in within if name and name != key)
                values.setdefault(shared, set()).add(hashable(flat, key))
        if any(len(different) > 1 for different in values.values()):
            keys.append(key)
    return keys


def _refuse_mixed(entries: Sequence[Scored], keys: Sequence[str]) -> None:
    for key in TEST_DATA:
        values = sorted({str(entry.flat[key]) for entry in entries if key in entry.flat})
        if len(values) > 1 and key not in keys:
            mixed = f"{key} differs: {', '.join(values)}"
            raise FedfewError("E114", "compare", mixed, f"Compare them separately, or add --by {key}")
        if len(values) > 1 and key == "dataset.name":
            return  # the rest of the section differs with it


def _row(group: Sequence[Scored], keys: Sequence[str], pairing: Pairing, which: str) -> tuple[Row, list[str]]:
    """A row of the table, and why runs of it have no paired difference."""
    runs, own = [entry.run for entry in group], group[0].flat
    gains, faults = [], set[str]()
    for entry in group if pairing and own[METHOD] != pairing.name else ():
        bound = pairing.of(entry.run)
        base = bound.accuracy(which) if bound.same_seed else None
        if base is None:
            shared = "(seeds, data, labels, model, rounds)"
            faults.add(f"no {pairing.name} run like the one with seed {entry.run.seed} {shared}")
        elif bound.differs:
            setting = "another setting" if len(bound.runs) == 1 else "several settings"
            differing = ", ".join(bound.differs)
            faults.add(f"no paired difference: {pairing.name} was run with {setting} ({differing})")
        else:
            gains.append((entry.run.seeds, entry.accuracy - base))
    row = Row(
        key={name: own.get(name) for name in keys},
        accuracy=Interval.of(_by_seeds((entry.run.seeds, entry.accuracy) for entry in group)),
        difference=Interval.of(_by_seeds(gains)) if gains else None,
        bytes_up=fmean(run.traffic("bytes_up") for run in runs),
        bytes_down=fmean(run.traffic("bytes_down") for run in runs),
        runs=tuple(str(run.path) for run in runs),
        rounds=min(run.done for run in runs),
        partial=any(not run.finished for run in runs),
        unpublished="; or ".join(dict.fromkeys(run.unpublished for run in runs if run.unpublished)),
        tuned="; or ".join(dict.fromkeys(run.tuned or NOT_SEARCHED for run in runs)),
    )
    return row, sorted(faults)


def _by_seeds(values: Iterable[tuple[tuple[int, int], float]]) -> list[float]:
    """One value for each split, or for each seed of training where there is one split.

    Runs that share it are not independent repetitions, so a cross product of seeds counts once for each split.
    """
    known = list(values)
    several = len({split for (_, split), _ in known}) > 1
    by_seed: dict[int, list[float]] = {}
    for seeds, value in known:
        by_seed.setdefault(seeds[1] if several else seeds[0], []).append(value)
    return [fmean(own) for own in by_seed.values()]
