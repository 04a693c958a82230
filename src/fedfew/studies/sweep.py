"""Many runs in one folder: a cell is a config; finished runs stay, interrupted ones are resumed, each runs once."""

import contextlib
import itertools
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedfew.config.files import flat, parse_set
from fedfew.config.names import own_code
from fedfew.config.schema import load
from fedfew.config.tables import Table, apply_overrides, read
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, digest
from fedfew.runs.folder import CONFIG, runs_in
from fedfew.runs.run import NAMES, Run
from fedfew.runs.session import Session, reopen, start
from fedfew.runtime.record import RoundRecord
from fedfew.studies.bounds import SCENARIO, knows_names
from fedfew.studies.verdict import baseline_of

BUSY = ("E301", "E306")
"""Another process has just created the folder, or is working in it."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run to make: a readable name and a validated config."""

    name: str
    config: Config
    tuned: str = ""
    """How its settings were searched for; recorded with the run and shown in tables."""

    @property
    def identity(self) -> str:
        """What makes two runs the same experiment: every key but those of the fleet, which never change the result."""
        return identity(self.config.document)

    @property
    def folder(self) -> str:
        """The readable name and a hash, so that no two cells share a folder."""
        return f"{self.name}-{digest(self.identity.encode())[:8]}"


@dataclass(frozen=True, eq=False)
class CellEvent:
    """Something that happened to a cell."""

    cell: Cell
    kind: Literal["skipped", "started", "round", "finished", "paused", "busy", "failed", "warned"]
    path: Path
    record: RoundRecord | None = None
    fault: FedfewError | None = None
    done: int = 0
    """Rounds done already when it started."""


def identity(document: Mapping[str, Any]) -> str:
    """A resolved config without its fleet, as text."""
    return json.dumps({k: v for k, v in document.items() if k != "fleet"}, sort_keys=True)


def index(folder: Path) -> dict[str, Path]:
    """The runs of a folder by identity; of several with the same, a finished one."""
    known: dict[str, Path] = {}
    for path in runs_in(folder):
        try:
            run = Run.open(path)
            same = identity(run.document)
        except FedfewError:  # damaged: nothing to resume
            continue
        if same not in known or run.finished:
            known[same] = run.path
    return known


def paths(cells: Sequence[Cell], folder: Path) -> list[Path]:
    """Where the run of each cell is or will be. A run on own images knows the number of its sites only once it has
    begun, and is found by its folder's name."""
    known = index(folder)
    return [known.get(cell.identity, folder / cell.folder) for cell in cells]


def located(cells: Sequence[Cell], folder: Path) -> list[Path | None]:
    """The run of each cell; None if it has not begun."""
    return [path if (path / CONFIG).is_file() else None for path in paths(cells, folder)]


def named(cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """Labels and class names alone, for each scenario of these cells whose backbone knows the classes by name."""
    made: dict[str, Cell | None] = {}
    for cell, path in sorted(
        zip(cells, located(cells, folder), strict=True), key=lambda c: c[0].config.method_name != NAMES
    ):
        settings = {key: value for key, value in flat(cell.config.document).items() if key.startswith(SCENARIO)}
        own = json.dumps([cell.config.seed, settings], sort_keys=True)
        if cell.config.method_name == NAMES:
            made[own] = None
        elif own not in made and path and knows_names(Run.open(path)):
            with contextlib.suppress(FedfewError):  # a method that cannot be compared with a lower bound
                made[own] = Cell(f"{NAMES}-seed{cell.config.seed}", baseline_of(cell.config, NAMES))
    return [cell for cell in made.values() if cell]


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
    key, _, text = option.partition("=")
    values: Any = None
    if key.strip() and text.strip():
        values = parse_set(f"value={text}")[1]  # a list written with its brackets, or several lists
        values = values if isinstance(values, list) else parse_set(f"value=[{text}]")[1]
        values = values if isinstance(values, list) else [parse_set(f"value={part}")[1] for part in text.split(",")]
    if not values:
        remedy = "Write e.g. --grid partition.mu=0.1,1,10"
        raise FedfewError("E102", f"--grid {option}", "is not of the form key=value,value", remedy)
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise FedfewError("E103", f"--grid {option}", f"has {repeated[0]!r} twice", "Give each value once")
    return key.strip(), values


def repeated(
    source: str | Path | Table, base: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], seeds: int, fix: str
) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """The overrides and axes of a sweep with ``seeds`` repetitions, counted from the config's seed.

    Each draws labels, partition, model and cohorts anew; with ``fix = "data"`` labels and partition stay.
    """
    if fix not in ("", "data"):
        raise FedfewError("E103", "--fix", f"{fix!r} cannot be held still", "Use --fix data")
    if seeds and "seed" in axes:
        raise FedfewError("E113", "--seeds", "the seeds are also given with --grid seed", "Keep one of the two")
    table = apply_overrides(read(source)[0], base)
    first, section = table.get("seed", 0), table.get("dataset", {})
    if seeds:
        axes = {**axes, "seed": list(range(first, first + seeds))}
        base = {key: value for key, value in base.items() if key != "seed"}
    if fix and "dataset.seed" in axes:
        raise FedfewError("E113", "--fix data", "--grid varies dataset.seed", "Keep one of the two")
    return {**base, "dataset.seed": section.get("seed", first)} if fix else dict(base), dict(axes)


def cells_of(
    source: str | Path | Table,
    base: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
    *,
    keep_settings: bool = False,
) -> list[Cell]:
    """The cells of a sweep, the last key varying fastest; every config is checked before anything runs."""
    both = [key for key in axes if key in base]
    if both:
        raise FedfewError("E113", f"--grid {both[0]}", f"{both[0]} is also given with --set", "Keep one of the two")
    wrong = [key for key, values in axes.items() if isinstance(values, str) or not len(values)]
    if wrong or not axes:
        raise FedfewError("E103", f"grid {', '.join(wrong)}".strip(), "has no list of values", "Give one for each key")
    chosen = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [Cell(slug(own), load(source, drawn_anew(base, own), keep_settings=keep_settings)) for own in chosen]


def drawn_anew(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """All overrides of a cell. A seed of its own also draws labels and partition, whatever the config's seed for them
    is, unless ``base`` holds that still."""
    return ({"dataset.seed": own["seed"]} if "seed" in own else {}) | {**base, **own}


def slug(overrides: Mapping[str, Any]) -> str:
    """A folder name from overrides: ``method.name=fedmix, partition.mu=0.1, seed=2`` → ``fedmix-mu0.1-seed2``."""
    last = [(key.rpartition(".")[2], value) for key, value in overrides.items()]
    words = [f"{'' if name in ('name', 'kind') else name}{value}" for name, value in last]
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(words))[:80] or "run"


def advance(
    cells: Sequence[Cell], folder: Path, warn: Warn, *, until: int = 0, anyway: bool = False, command: str = ""
) -> Generator[CellEvent, None, None]:
    """Run the cells one after another, yielding every event as it happens; finished ones are skipped.

    With ``until``, every run pauses after that round, to be resumed by a later call: all grow together.
    A cell that another process works on is skipped, so several processes can share a folder. A run that fails
    in its rounds is reported and stays resumable; the others continue.
    """
    for cell, path, settled in queue(cells, folder, until):
        if settled:
            yield settled
        else:
            yield from run_cell(cell, path, warn, until=until, anyway=anyway, command=command)


def queue(cells: Sequence[Cell], folder: Path, until: int) -> Iterator[tuple[Cell, Path, CellEvent | None]]:
    """Each cell with its path and, if it need not run, why; such cells come first, so that the rest is known early."""
    both = list(zip(cells, paths(cells, folder), strict=True))
    for cell, path in sorted(both, key=lambda one: _settled(one[0], one[1], until) is None):
        yield cell, path, _settled(cell, path, until)


def _settled(cell: Cell, path: Path, until: int) -> CellEvent | None:
    """Whether a run is finished, or has reached the round at which all pause."""
    if not (path / CONFIG).is_file():
        return None
    run = Run.open(path)
    if run.finished:
        return CellEvent(cell, "skipped", path)
    return CellEvent(cell, "paused", path, done=run.done) if until and run.done >= until else None


def run_cell(
    cell: Cell, path: Path, warn: Warn, *, until: int = 0, anyway: bool = False, command: str = ""
) -> Generator[CellEvent, None, None]:
    """Start or resume the run of a cell, on the cell's fleet; an error before its first round is raised."""
    try:
        session = _session(cell, path, warn, anyway, command)
    except FedfewError as fault:
        if fault.code not in BUSY:
            raise
        yield CellEvent(cell, "busy", path, fault=fault)
        return
    yield CellEvent(cell, "started", path, done=session.state.round)
    try:
        with contextlib.closing(session.advance()) as records:
            for record in records:
                yield CellEvent(cell, "round", path, record)
                if record["round"] == until < session.rounds:
                    break
    except FedfewError as fault:
        yield CellEvent(cell, "busy" if fault.code in BUSY else "failed", path, fault=fault)
    else:
        yield CellEvent(cell, "finished" if Run(session.folder).finished else "paused", path)


def _session(cell: Cell, path: Path, warn: Warn, anyway: bool, command: str) -> Session:
    if (path / CONFIG).is_file():
        fleet = {f"fleet.{key}": value for key, value in vars(cell.config.fleet).items()}
        return reopen(path, warn, fleet, anyway=anyway, allow_code=own_code(cell.config.document).values())
    path.parent.mkdir(parents=True, exist_ok=True)
    return start(cell.config, path, command, tuned=cell.tuned)
