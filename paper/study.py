"""A study: runs, and how each figure made of them was requested. A folder while it grows, an archive when published.

A folder holds the runs and ``figures.json``; an archive ``NAME.jsonl.xz`` has ``NAME.json`` next to it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.runs.collection import SUFFIX, is_archive, read_archive, write_archive
from fedfew.runs.folder import CONFIG
from fedfew.runs.run import Run
from fedfew.studies.sweep import located
from paper.plan import Cells

FIGURES = "figures.json"


@dataclass(frozen=True)
class Request:
    """How a figure was requested."""

    command: str
    scale: str | None
    seeds: int
    runs: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    """The names of its runs by panel and arm."""
    partitions: Mapping[str, list[list[int]]] = field(default_factory=dict)
    """Figure 3: for each μ how many images of each class every client has."""
    classes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Study:
    """A folder of runs, or an archive of them."""

    path: Path

    @cached_property
    def _archived(self) -> dict[str, Run]:
        return {run.name: run for run in read_archive(self.path)} if is_archive(self.path) else {}

    def run(self, name: str) -> Run | None:
        """A run by its name; None if it has not begun."""
        if is_archive(self.path):
            return self._archived.get(name)
        return Run.open(self.path / name) if (self.path / name / CONFIG).is_file() else None

    @property
    def _file(self) -> Path:
        if is_archive(self.path):
            return self.path.with_name(self.path.name.removesuffix(SUFFIX) + ".json")
        return self.path / FIGURES

    def requests(self) -> dict[str, Request]:
        """The figures requested so far."""
        try:
            return {name: Request(**entry) for name, entry in json.loads(self._file.read_text("utf-8")).items()}
        except FileNotFoundError:
            reason, remedy = "contains no figure", "Run `python -m paper fig4` first, or give its --out"
            raise FedfewError("E302", str(self.path), reason, remedy) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise FedfewError("E309", str(self._file), f"is damaged ({error})", "Run `python -m paper` again") from None

    def remember(self, requests: Mapping[str, Request]) -> None:
        """Save how figures were requested, so that they can be drawn again without repeating the options."""
        known = self.requests() if self._file.is_file() else {}
        entries = {name: asdict(request) for name, request in (known | dict(requests)).items()}
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, json.dumps(entries, indent=1, ensure_ascii=False).encode())

    def names(self, planned: Cells) -> dict[str, dict[str, list[str]]]:
        """Where the runs of a figure are or will be, by panel and arm."""
        by_panel: dict[str, dict[str, list[str]]] = {}
        runs = located(list(planned.values()), self.path)
        for (((panel, label), _), cell), path in zip(planned.items(), runs, strict=True):
            by_panel.setdefault(panel, {}).setdefault(label, []).append(path.name if path else cell.folder)
        return by_panel


def keep(study: Study, folder: Path) -> Path:
    """Publish the finished runs of a study's figures as an archive in a folder, in place of an older one.

    Left out is what concerns single clients' answers: no page shows it."""
    requests = study.requests()
    panels = [arms for request in requests.values() for arms in request.runs.values()]
    names = {name for arms in panels for own in arms.values() for name in own}
    runs = {name: run for name in sorted(names) if (run := study.run(name)) is not None and run.finished}
    kept = Study(folder / f"{study.path.name}{SUFFIX}")
    kept.path.unlink(missing_ok=True)
    write_archive(kept.path, {name: slim(run) for name, run in runs.items()})
    write_atomically(kept._file, study._file.read_bytes())
    return kept.path


def slim(run: Run) -> Run:
    """A run without what its records say of single clients."""
    single: dict[str, Any] = {"cohort": [], "weights": {}, "updates": [], "pseudo_classes": []}
    return run.with_(records=[record | single for record in run.records])


def published(folder: Path) -> Iterable[Study]:
    """The studies whose records are in a folder."""
    return [Study(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
