"""Runs beside each other: mean and 95 % interval over seeds, and the paired difference to server-only training."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from scipy.special import stdtrit

from fedfew.config.schema import NAMED
from fedfew.core.errors import FedfewError
from fedfew.runs.summary import traffic
from fedfew.studies.outcomes import WHICH, Outcome

SEEDS = ("seed", "dataset.seed")
METHOD, BASELINE = "method.name", "server-only"
SHORT = {"availability": "availability.kind"} | {section: f"{section}.{key}" for section, (key, *_) in NAMED.items()}
"""What may be written for a section's name in ``--by``: method for method.name, and so on."""
TEST_DATA = ("dataset.name", "dataset.path", "dataset.split", "dataset.test")
"""Runs that differ here are told on different test images."""
NOT_ITS = ("partition", "aggregator", "availability", "client", "vote", "objective", "gate", "participation", "clients")
"""What has no influence on server-only training, since it asks no client."""

Flat = dict[str, Any]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval by Student's t; one value alone has none."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> "Interval":
        n, centre = len(values), mean(values)
        if n < 2:
            return Interval(centre, None, None, None, n)
        sd = stdev(values)
        half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
        return Interval(centre, sd, centre - half, centre + half, n)

    @property
    def significant(self) -> bool | None:
        """For a difference: whether the interval leaves out zero; not known from one pair."""
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Row:
    """The runs that share the values of the grouping keys."""

    key: dict[str, Any]
    accuracy: Interval
    difference: Interval | None
    """To server-only runs with the same seeds, data, labels, model and rounds."""
    bytes_up: float
    """What the clients send in a round, the mean over runs and rounds."""
    bytes_down: float
    runs: tuple[str, ...]
    rounds: int
    partial: bool

    @property
    def label(self) -> str:
        return ", ".join(str(v) if k in SHORT.values() else f"{k} = {v}" for k, v in self.key.items() if v is not None)


@dataclass(frozen=True)
class Comparison:
    """A table of rows, what it does not show, and why."""

    by: tuple[str, ...]
    measure: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    left_out: dict[str, str]


def compare(
    runs: Sequence[Outcome], by: Sequence[str] | None = None, *, partial: bool = False, which: str = WHICH
) -> Comparison:
    """Group runs by config keys (those that differ, if none are given) and compare the groups.

    Unfinished runs are left out unless ``partial``; the same experiment counts once; mixed datasets are E114.
    """
    flats = {id(run): flat(run) for run in runs}
    kept, left_out = _usable(runs, flats, partial, which)
    if not kept:
        what = "; ".join(f"{path}: {why}" for path, why in left_out.items()) or "no run was given"
        raise FedfewError("E310", "compare", what, "Finish the runs, or add --partial to take them as they are")
    known = [flats[id(run)] for run in kept]
    keys = _keys(by, known) if by else _differing(known)
    _refuse_mixed(known, keys)
    groups: dict[str, list[Outcome]] = {}
    for run in kept:
        groups.setdefault(json.dumps([flats[id(run)].get(key) for key in keys]), []).append(run)
    notes: list[str] = []
    rows = [_row(group, kept, flats, keys, which, notes) for group in groups.values()]
    if any(row.accuracy.n < 2 for row in rows):
        single = ", ".join(row.label for row in rows if row.accuracy.n < 2)
        notes.append(f"No interval from fewer than two seeds: {single}")
    if not any(f[METHOD] == BASELINE for f in known):
        notes.append("No server-only run among these, so no difference to it")
    rows.sort(key=lambda row: -row.accuracy.mean)
    return Comparison(tuple(keys), which, tuple(rows), tuple(dict.fromkeys(notes)), left_out)


def flat(run: Outcome) -> Flat:
    """A run's config as dotted keys, without the fleet and without what cannot matter to its method."""
    found: Flat = {}
    for key, value in run.config.items():
        found |= {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, Mapping) else {key: value}
    skip = ("fleet", *(NOT_ITS if found[METHOD] == BASELINE else ()))
    return {key: value for key, value in found.items() if key.partition(".")[0] not in skip}


def _usable(
    runs: Sequence[Outcome], flats: Mapping[int, Flat], partial: bool, which: str
) -> tuple[list[Outcome], dict[str, str]]:
    kept: dict[str, Outcome] = {}
    left_out: dict[str, str] = {}
    for run in sorted(runs, key=lambda r: not r.finished):  # of two runs of one experiment the finished one counts
        identity = json.dumps(flats[id(run)], sort_keys=True)
        if not run.finished and not partial:
            left_out[str(run.path)] = f"not finished, at round {run.rounds} of {run.of}"
        elif run.accuracy(which) is None:
            left_out[str(run.path)] = "has no accuracy yet"
        elif identity in kept:
            left_out[str(run.path)] = f"the same experiment as {kept[identity].path}"
        else:
            kept[identity] = run
    return list(kept.values()), left_out


def _keys(by: Sequence[str], known: Sequence[Flat]) -> list[str]:
    """The keys asked for, written out; one that no run has is refused."""
    keys = [SHORT.get(key, key) for key in by]
    everywhere = set().union(*known)
    for key in keys:
        if key not in everywhere:
            close = difflib.get_close_matches(key, everywhere, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise FedfewError(
                "E104", "--by", f"no run has a key {key}{hint}", "Use the keys of run.toml, e.g. partition.mu"
            )
    return list(dict.fromkeys(keys))


def _differing(known: Sequence[Flat], within: Iterable[str] = ()) -> list[str]:
    """The method, and every key in which runs differ that could have been alike."""
    found = [METHOD]
    for key in dict.fromkeys(key for own in known for key in own):
        if key in SEEDS or key in within or key == METHOD:
            continue
        section = key.rpartition(".")[0]
        name = SHORT.get(section) if section in NAMED else None
        values: dict[Any, set[str]] = {}
        for own in known:
            if key in own:  # settings of a method, a model, … are only compared with those of the same
                values.setdefault(own.get(name) if name and key != name else None, set()).add(json.dumps(own[key]))
        if any(len(different) > 1 for different in values.values()):
            found.append(key)
    return found


def _refuse_mixed(known: Sequence[Flat], keys: Sequence[str]) -> None:
    for key in TEST_DATA:
        values = sorted({str(own[key]) for own in known if key in own})
        if len(values) > 1 and key not in keys:
            what = f"{key} differs: {', '.join(values)}"
            raise FedfewError("E114", "compare", what, f"Compare them apart, or add --by {key}")
        if len(values) > 1 and key == "dataset.name":
            return  # the rest of the section differs with it


def _row(
    group: Sequence[Outcome],
    runs: Sequence[Outcome],
    flats: Mapping[int, Flat],
    keys: Sequence[str],
    which: str,
    notes: list[str],
) -> Row:
    own = flats[id(group[0])]
    key = {name: own.get(name) for name in keys}
    mixed = [k for k in _differing([flats[id(r)] for r in group], keys) if k != METHOD or METHOD not in keys]
    mixed = [k for k in mixed if len({json.dumps(flats[id(r)].get(k)) for r in group}) > 1]
    gains, faults = [], set()
    if own[METHOD] != BASELINE:
        for run in group:
            base, fault = _baseline(run, runs, flats, keys)
            faults.add(fault)
            if base is not None:
                gains.append((run.seeds, _accuracy(run, which) - _accuracy(base, which)))
    row = Row(
        key=key,
        accuracy=Interval.of(_by_seeds((run.seeds, _accuracy(run, which)) for run in group)),
        difference=Interval.of(_by_seeds(gains)) if gains else None,
        bytes_up=mean(traffic(run.records, "bytes_up") for run in group),
        bytes_down=mean(traffic(run.records, "bytes_down") for run in group),
        runs=tuple(str(run.path) for run in group),
        rounds=min(run.rounds for run in group),
        partial=any(not run.finished for run in group),
    )
    if mixed:
        notes.append(f"{row.label} averages over runs that differ in {', '.join(mixed)}: add them to --by")
    notes += [f"{row.label}: {fault}" for fault in sorted(faults) if fault]
    if row.partial:
        told = ", ".join(f"{run.rounds} of {run.of}" for run in group if not run.finished)
        notes.append(f"{row.label} includes runs that are not finished, at round {told}")
    return row


def _by_seeds(values: Iterable[tuple[tuple[int, int], float]]) -> list[float]:
    """One value for each pair of seeds: runs that share them are no independent repetitions."""
    found: dict[tuple[int, int], list[float]] = {}
    for seeds, value in values:
        found.setdefault(seeds, []).append(value)
    return [mean(own) for own in found.values()]


def _accuracy(run: Outcome, which: str) -> float:
    value = run.accuracy(which)
    assert value is not None  # runs without one have been left out
    return value


def _baseline(
    run: Outcome, runs: Sequence[Outcome], flats: Mapping[int, Flat], keys: Sequence[str]
) -> tuple[Outcome | None, str]:
    """The server-only run to pair with, and what is to be said about it."""
    own = flats[id(run)]
    bounds = [other for other in runs if flats[id(other)][METHOD] == BASELINE]
    if not bounds:
        return None, ""

    def alike(other: Outcome, wanted: Iterable[str]) -> bool:
        theirs = flats[id(other)]
        return all(own.get(key) == theirs.get(key) for key in wanted if key in theirs)

    scene = [key for key in own if key in ("seed", "labels", "rounds") or key.startswith(("dataset.", "model."))]
    scene += [key for key in keys if key != METHOD and not key.startswith("method.")]
    found = [other for other in bounds if alike(other, scene)]
    if not found:
        return None, f"no server-only run like the one with seed {run.seeds[0]} (seeds, data, labels, model, rounds)"
    recipe = ["method.lambda_s", *(key for key in own if key.startswith("server."))]
    same = [other for other in found if alike(other, recipe)]
    told = "" if same else "server-only was trained with another server recipe"
    return (same or found)[0], told
