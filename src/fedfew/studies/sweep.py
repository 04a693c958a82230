"""Many runs in one folder: a cell is a config; finished runs stay, interrupted ones are resumed, each runs once."""

import contextlib
import itertools
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedfew.config.files import parse_set
from fedfew.config.names import own_code
from fedfew.config.schema import Config, load
from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, digest
from fedfew.runs.folder import CONFIG
from fedfew.runs.run import Run
from fedfew.runs.session import Session, reopen, start
from fedfew.runtime.record import RoundRecord

BUSY = ("E301", "E306")
"""Another process has just created the folder, or is working in it."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run to make: a readable name and a validated config."""

    name: str
    config: Config

    @property
    def identity(self) -> str:
        """What makes two runs the same experiment: every key but those of the fleet, which never change the result."""
        return identity(self.config)

    @property
    def folder(self) -> str:
        """The readable name and a hash, so that no two cells share a folder."""
        return f"{self.name}-{digest(self.identity.encode())[:8]}"


@dataclass(frozen=True, eq=False)
class Event:
    """Something that happened to a cell."""

    cell: Cell
    kind: Literal["skipped", "started", "round", "finished", "paused", "busy", "failed", "warned"]
    path: Path
    record: RoundRecord | None = None
    fault: FedfewError | None = None
    done: int = 0
    """Rounds done already when it started."""


def identity(config: Config) -> str:
    """The resolved config without its fleet, as text."""
    return json.dumps({k: v for k, v in config.document.items() if k != "fleet"}, sort_keys=True)


def index(folder: Path) -> dict[str, Path]:
    """The runs of a folder by identity. Their configs are resolved again, so a setting added to fedfew since then
    counts as its default, and no run is repeated because of it."""
    found: dict[str, Path] = {}
    for place in sorted(folder.glob(f"[!.]*/{CONFIG}")):
        try:
            run = Run.open(place.parent)
            known = identity(run.config)
        except FedfewError:  # from a version with other settings, or damaged: nothing to resume
            continue
        if known not in found or run.finished:
            found[known] = run.path
    return found


def located(cells: Sequence[Cell], folder: Path) -> list[Path | None]:
    """The run of each cell. A run on own images knows the number of its sites only once it has begun, and is found by
    its folder's name."""
    known = index(folder)
    places = [known.get(cell.identity, folder / cell.folder) for cell in cells]
    return [place if (place / CONFIG).is_file() else None for place in places]


def axes_of(options: Sequence[str]) -> dict[str, list[Any]]:
    """``["partition.mu=0.1,1", "seed=0,1"]`` → the values of each key."""
    axes: dict[str, list[Any]] = {}
    for option in options:
        key, values = grid_axis(option)
        if key in axes:
            raise FedfewError("E103", f"--grid {option}", f"{key} is varied twice", "Give all its values in one --grid")
        axes[key] = values
    return axes


def grid_axis(option: str) -> tuple[str, list[Any]]:
    """``partition.mu=0.1,1`` → its key and values; names need no quotes."""
    key, equals, text = option.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise FedfewError(
            "E102", f"--grid {option}", "is not of the form key=value,value", "Write e.g. --grid partition.mu=0.1,1,10"
        )
    whole = parse_set(f"value={text}")[1]
    listed = parse_set(f"value=[{text}]")[1]
    if isinstance(whole, list):  # a list of lists, or one written with its brackets
        values = whole
    elif isinstance(listed, list):
        values = listed
    else:  # names without quotes
        values = [parse_set(f"value={part}")[1] for part in text.split(",")]
    if not values:
        raise FedfewError("E102", f"--grid {option}", "has no values", "Write e.g. --grid partition.mu=0.1,1,10")
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise FedfewError("E103", f"--grid {option}", f"has {repeated[0]!r} twice", "Give each value once")
    return key.strip(), values


def cells_of(source: str | Path | dict[str, Any], base: Mapping[str, Any], grids: Sequence[str]) -> list[Cell]:
    """The cells of a sweep, every config checked before anything runs."""
    return combined(source, base, axes_of(grids))


def combined(
    source: str | Path | dict[str, Any], base: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]
) -> list[Cell]:
    """The same with values instead of options, the last key varying fastest."""
    both = [key for key in axes if key in base]
    if both:
        raise FedfewError("E113", f"--grid {both[0]}", f"{both[0]} is also given with --set", "Keep one of the two")
    wrong = [key for key, values in axes.items() if isinstance(values, str) or not len(values)]
    if wrong or not axes:
        raise FedfewError("E103", f"grid {', '.join(wrong)}".strip(), "has no list of values", "Give one for each key")
    chosen = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [Cell(slug(own), load(source, {**base, **own})) for own in chosen]


def slug(overrides: Mapping[str, Any]) -> str:
    """A folder name from overrides: ``method.name=fedmix, partition.mu=0.1, seed=2`` → ``fedmix-mu0.1-seed2``."""
    last = [(key.rpartition(".")[2], value) for key, value in overrides.items()]
    words = [f"{'' if name in ('name', 'kind') else name}{value}" for name, value in last]
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(words))[:80] or "run"


def advance(
    cells: Sequence[Cell], folder: Path, warn: Warn, *, until: int = 0, anyway: bool = False, command: str = ""
) -> Generator[Event, None, None]:
    """Run the cells one after another, yielding every event as it happens; finished ones are skipped.

    With ``until``, every run pauses after that round, to be resumed by a later call: all grow together.
    A cell that another process works on is skipped, so several processes can share a folder. A run that fails
    in its rounds is reported and stays resumable; the others continue.
    """
    known = index(folder)
    for cell in done_first(cells, folder, known, until):
        path = known.get(cell.identity, folder / cell.folder)
        if event := nothing_to_do(cell, path, until):
            yield event
            continue
        try:
            session = open_cell(cell, path, warn, anyway=anyway, command=command)
        except FedfewError as fault:
            if fault.code not in BUSY:
                raise
            yield Event(cell, "busy", path, fault=fault)
            continue
        yield Event(cell, "started", path, done=session.state.round)
        yield from _rounds(cell, session, until)


def done_first(cells: Sequence[Cell], folder: Path, known: Mapping[str, Path], until: int) -> list[Cell]:
    """The cells in their order, those with nothing to do before all others: so what is left is known at the start."""

    def to_do(cell: Cell) -> bool:
        return nothing_to_do(cell, known.get(cell.identity, folder / cell.folder), until) is None

    return sorted(cells, key=to_do)


def nothing_to_do(cell: Cell, path: Path, until: int) -> Event | None:
    """Why a cell need not run: it is finished, or has reached the round at which all pause."""
    if finished(path):
        return Event(cell, "skipped", path)
    if until and (done := reached(path)) >= until:
        return Event(cell, "paused", path, done=done)
    return None


def _rounds(cell: Cell, session: Session, until: int) -> Iterator[Event]:
    path = session.folder.path
    try:
        for record in rounds_until(session, until):
            yield Event(cell, "round", path, record)
    except FedfewError as fault:
        yield Event(cell, "busy" if fault.code in BUSY else "failed", path, fault=fault)
    else:
        yield Event(cell, "finished" if session.state.round >= session.rounds else "paused", path)


def rounds_until(session: Session, until: int) -> Iterator[RoundRecord]:
    """The rounds of a session up to the given one; 0: all that are left."""
    with contextlib.closing(session.advance()) as records:
        for record in records:
            yield record
            if record["round"] == until < session.rounds:
                return


def finished(path: Path) -> bool:
    """Whether the run folder exists and its run is done."""
    return (path / CONFIG).is_file() and Run.open(path).finished


def reached(path: Path) -> int:
    """The rounds a run has done; 0 if there is no run yet."""
    return Run.open(path).done if (path / CONFIG).is_file() else 0


def open_cell(
    cell: Cell,
    path: Path,
    warn: Warn,
    fleet: Mapping[str, Any] | None = None,
    *,
    anyway: bool = False,
    command: str = "",
) -> Session:
    """Start or resume the cell's run; ``fleet`` replaces keys of the fleet, e.g. {"fleet.kind": "inline"}."""
    changes = dict(fleet or {})
    if (path / CONFIG).is_file():
        allow_code = own_code(cell.config.document).values()
        return reopen(path, warn, changes, anyway=anyway, allow_code=allow_code)
    path.parent.mkdir(parents=True, exist_ok=True)
    return start(cell.config.with_(changes), path, command)
