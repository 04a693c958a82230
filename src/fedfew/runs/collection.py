"""Many runs at once: those of run folders, of folders that contain runs, and of archives."""

from collections.abc import Iterable
from pathlib import Path

from fedfew.core.errors import FedfewError
from fedfew.runs.archive import is_archive, read_archive
from fedfew.runs.folder import find_runs
from fedfew.runs.run import Run


def open_runs(sources: Iterable[str | Path]) -> list[Run]:
    """The runs in these folders and archives, each once; E302 for a source without any."""
    opened: dict[Path, Run] = {}
    for source in map(Path, sources):
        runs = runs_below(source)
        if not runs:
            reason = "contains no run" if source.exists() else "does not exist"
            raise FedfewError("E302", str(source), reason)
        opened |= {run.path: run for run in runs}
    return list(opened.values())


def runs_below(source: Path) -> list[Run]:
    """The runs of an archive, or at or below a folder, with their names below it."""
    if is_archive(source):
        return read_archive(source)
    return [Run.open(path, name=name_below(source, path)) for path in find_runs(source)]


def read_all(source: Path) -> tuple[list[Run], list[FedfewError]]:
    """Every readable run of an archive or folder, and the faults of the others."""
    runs = runs_below(source)
    return [run for run in runs if run.fault is None], [run.fault for run in runs if run.fault is not None]


def name_below(folder: Path, path: Path) -> str:
    """A run's path below a folder; the folder's own name if it is the run."""
    return path.resolve().name if path == folder else path.relative_to(folder).as_posix()
