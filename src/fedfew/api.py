"""The API for scripts and notebooks: ``fedfew.run``, ``resume``, ``sweep`` and ``compare``, with their progress."""

import contextlib
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedfew.config.names import own_code
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked
from fedfew.interface.batch import run_with_names
from fedfew.interface.console import warn
from fedfew.interface.progress import follow
from fedfew.runs.collection import open_runs
from fedfew.runs.folder import CONFIG
from fedfew.runs.run import BOUNDS, Run
from fedfew.runs.session import Experiment, Session, assemble, reopen
from fedfew.runs.summary import HEADLINE
from fedfew.studies import compare as comparing
from fedfew.studies.compare import Comparison
from fedfew.studies.sweep import cells_of, identity, located, named, repeated

__all__ = ["compare", "resume", "run", "sweep"]

Source = str | Path | dict[str, Any]
IfExists = Literal["error", "continue", "renew"]


def run(
    source: Source,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    keep_settings: bool = False,
    progress: bool = True,
) -> Run:
    """Run a preset, a TOML file or a table to its end; ``overrides`` are dotted, e.g. {"partition.mu": 0.1}.

    A method that they name has its published settings and aggregator; with ``keep_settings`` it has those of the
    config's method, as far as they have the same name.

    ``out`` is the run folder (default: runs/NAME-TIME). If it already holds a run, ``if_exists`` decides: "error"
    refuses, "continue" finishes that run if needed and returns it (its settings must be the same), and "renew"
    replaces it once the new run has been set up. So a notebook's cell can be run again.
    """
    if if_exists not in ("error", "continue", "renew"):
        raise FedfewError("E103", "if_exists", f"is {if_exists!r}", 'Use "error", "continue" or "renew"')
    experiment = Experiment.load(source, overrides, keep_settings=keep_settings)
    there = out is not None and (Path(out) / CONFIG).is_file()
    if not there or if_exists == "error":
        return _to_the_end(experiment.start(out), progress)
    folder = Path(str(out))
    if if_exists == "renew":
        return _to_the_end(_renewed(experiment, folder), progress)
    allow_code = tuple(own_code(experiment.config.document).values())
    existing = Run.open(folder, allow_code=allow_code)
    if identity(existing.document) != identity(_settled(experiment.config).document):
        why = "holds a run with other settings"
        raise FedfewError("E307", str(folder), why, 'Give another folder, or if_exists="renew" to replace it')
    return existing if existing.finished else resume(folder, progress=progress, allow_code=allow_code)


def resume(path: str | Path, *, anyway: bool = False, progress: bool = True, allow_code: Collection[str] = ()) -> Run:
    """Finish an interrupted run, with the same bits as without the interruption; ``anyway``: on another machine too.

    If the run uses your own code, name it in ``allow_code``: a folder alone never decides what code runs.
    """
    tell = warn if progress else lambda fault: None
    return _to_the_end(reopen(path, tell, anyway=anyway, allow_code=allow_code), progress)


def sweep(
    source: Source,
    grid: Mapping[str, Sequence[Any]],
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    seeds: int = 0,
    fix: str = "",
    keep_settings: bool = False,
    jobs: int = 0,
) -> list[Run]:
    """Run every combination of the grid's values, e.g. {"method.name": ["server-only", "fedmix"]}, with several seeds.

    Each of ``seeds`` draws labels, partition, model and cohorts anew; ``fix="data"`` keeps labels and partition.
    Methods are as published, unless ``keep_settings``.

    The runs are stored in ``out`` and returned in the grid's order, the last key varying fastest. Finished ones are not
    repeated, interrupted ones continue. ``jobs`` run at a time. A run's error is raised after the others are done.
    Where a backbone knows the classes by name, ``labels-names`` is run too, and comes last.
    """
    base, axes = repeated(source, overrides or {}, grid, seeds, fix)
    cells, folder = cells_of(source, base, axes, keep_settings=keep_settings), Path(out)
    tally = run_with_names(cells, folder, jobs=jobs, command=f"fedfew.sweep(..., out={str(out)!r})")
    for fault in tally.failed.values():
        raise fault
    if busy := tally.paths("busy"):
        raise FedfewError("E306", str(busy[0]), "another process is working on it")
    cells = [*cells, *named(cells, folder)]
    pairs = zip(cells, located(cells, folder), strict=True)
    return [Run.open(path, allow_code=own_code(cell.config.document).values()) for cell, path in pairs if path]


def compare(
    runs: Iterable[Run | str | Path],
    by: Sequence[str] | None = None,
    *,
    against: str = BOUNDS[0],
    partial: bool = False,
    measure: str = HEADLINE,
) -> Comparison:
    """Compare runs, run folders or folders of them: mean and 95 % interval over seeds, paired
    difference to server-only training or to the method ``against``, and p-values for all rows together.
    A notebook shows the table; ``to_frame()`` returns it for pandas."""
    opened = [part for one in runs for part in ([one] if isinstance(one, Run) else open_runs([one]))]
    return comparing.compare(opened, by, against=against, partial=partial, which=measure)


def _settled(config: Config) -> Config:
    """The config as a run writes it: your own images determine the number of sites and labels."""
    return assemble(config).config if config.own_sites else config


def _to_the_end(session: Session, progress: bool) -> Run:
    if not progress:
        with contextlib.closing(session.advance()) as records:
            for _ in records:
                pass
    else:
        config = session.parts.config
        follow(session, f"{config.method_name} on {config.dataset.name}")
    return Run(session.folder, tuple(own_code(session.parts.config.document).values()))


def _renewed(experiment: Experiment, folder: Path) -> Session:
    """Start a new run in place of an old one, which is restored if the new one cannot be set up."""
    Run.open(folder)  # only a run folder is ever replaced
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    with locked(folder):  # no other process works on it
        folder.rename(old)
    try:
        session = experiment.start(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return session
