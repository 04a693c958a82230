"""Many runs at once: those of run folders, of folders that contain runs, and of archives.

An archive holds the records of finished runs in one compressed file, without models and checkpoints. A line of it is
the JSON of one run: its name, config, environment, classes, rounds, summary and evaluation. The rounds are a table, a
list of values for each key: it compresses far better than a dict for each round.
"""

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fedfew.config.files import dumps
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically, writing
from fedfew.runs import reading
from fedfew.runs.folder import CLASSES, CONFIG, ENVIRONMENT, EVALUATION, ROUNDS, SUMMARY, RunFolder, find_runs
from fedfew.runs.run import Run
from fedfew.runtime.record import RoundRecord

SUFFIX = ".jsonl.xz"
MOST = 1 << 30
"""Bytes of an archive once decompressed; a larger one is refused."""
MEMORY = 1 << 28
"""Bytes that the decompressor may use."""
PARTS = {
    "config": "document", "environment": "environment", "classes": "classes", "rounds": "records",
    "summary": "summary", "evaluation": "evaluation",
}  # fmt: skip
"""The keys of a line, and the parts of a ``Run`` that they are."""


class Line(reading.Content):
    """One run of an archive."""

    run: str
    config: reading.Document
    environment: reading.Environment
    classes: reading.Classes
    rounds: list[RoundRecord]
    summary: reading.Summary
    evaluation: reading.Measures | None


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


def is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def write_archive(path: Path, runs: Mapping[str, Run]) -> None:
    """Write finished runs by name; those of an existing archive stay, unless a new one has the same name."""
    kept = {run.name: run for run in read_archive(path)} if path.exists() else {}
    lines = {name: _line(name, run) for name, run in {**kept, **runs}.items()}
    text = "".join(json.dumps(lines[name], ensure_ascii=False, separators=(",", ":")) + "\n" for name in sorted(lines))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _line(name: str, run: Run) -> dict[str, Any]:
    line = {"run": name} | {key: getattr(run, part) for key, part in PARTS.items()}
    rounds = _columns([record | {"updates": _columns(record["updates"])} for record in run.records])
    return line | {"rounds": rounds, "evaluation": run.evaluation or None}


def _columns(rows: Sequence[Any]) -> Any:
    """Rows that have the same keys as a list for each key."""
    if not rows or any(list(row) != list(rows[0]) for row in rows):
        return rows
    return {key: [row[key] for row in rows] for key in rows[0]}


def _rows(table: Any) -> list[dict[str, Any]]:
    if isinstance(table, list):
        return table
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def read_archive(path: Path) -> list[Run]:
    """The runs of an archive, by name; E309 if it is damaged."""
    runs = []
    for line in _lines(path):
        parts = {part: line[key] for key, part in PARTS.items()} | {"evaluation": line["evaluation"] or {}}
        parts |= {"name": line["run"], "judged": None, "held": False, "finished": True}
        runs.append(Run(RunFolder(path / line["run"])).with_(**parts))
    return runs


def _lines(path: Path) -> list[dict[str, Any]]:
    decompressor = lzma.LZMADecompressor(memlimit=MEMORY)
    try:
        text = decompressor.decompress(path.read_bytes(), MOST)
        lines = [_unpacked(json.loads(line)) for line in text.splitlines()] if decompressor.eof else []
    except FileNotFoundError:
        raise FedfewError("E302", str(path), "does not exist") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, lzma.LZMAError) as error:
        raise FedfewError("E309", str(path), f"is damaged ({error})", "Get the archive again") from None
    if not decompressor.eof:
        reason = "would inflate to more than a gigabyte" if len(text) == MOST else "ends too early"
        raise FedfewError("E205", str(path), reason, "Get the archive again")
    for line in lines:
        reading.check(Line, line, path)
        parts = PurePosixPath(line["run"]).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise FedfewError("E205", str(path), f"names a run {line['run']!r}")
    return lines


def _unpacked(line: Any) -> dict[str, Any]:
    rounds = [record | {"updates": _rows(record["updates"])} for record in _rows(line["rounds"])]
    return {**line, "rounds": rounds}


def unpack(path: Path, to: Path) -> list[Path]:
    """Write the runs of an archive as run folders that have records only; E301 if one exists already."""
    lines = _lines(path)
    folders = [to / line["run"] for line in lines]
    if taken := next((folder for folder in folders if folder.exists()), None):
        raise FedfewError("E301", str(taken), "exists already", "Give another folder")
    for line, folder in zip(lines, folders, strict=True):
        with writing(folder):
            folder.mkdir(parents=True)
        for name, content in _files(line).items():
            write_atomically(folder / name, content.encode())
    return folders


def _files(line: Mapping[str, Any]) -> dict[str, str]:
    """The files of a run folder as a run writes them, the config last: without it, the folder is no run."""
    pretty = {ENVIRONMENT: line["environment"], SUMMARY: line["summary"], EVALUATION: line["evaluation"]}
    files = {name: json.dumps(content, indent=1, ensure_ascii=False) for name, content in pretty.items() if content}
    rounds = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in line["rounds"])
    classes = json.dumps(line["classes"], ensure_ascii=False)
    return files | {CLASSES: classes, ROUNDS: rounds, CONFIG: dumps(line["config"])}
