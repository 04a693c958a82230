"""A search with optuna over a sweep's keys: each trial is a cell, judged by its best validation accuracy, resumable.

Every method has a study and as many trials of its own: one study over all would search most for what it likes best.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfew.config.schema import load
from fedfew.config.tree import settings_for
from fedfew.core.errors import FedfewError
from fedfew.core.extras import import_optional
from fedfew.core.storage import Warn
from fedfew.runs.run import Run
from fedfew.studies.bounds import BASELINE, CLIENT_KEYS, METHOD, TUNED, UNAFFECTED
from fedfew.studies.sweep import Cell, CellEvent, advance, axes_of, drawn_anew, paths, slug

JOURNAL = "optuna.journal"


@dataclass(frozen=True)
class Range:
    """An interval to draw from: ``server.lr=0.001:0.1:log``."""

    low: float
    high: float
    log: bool


Space = dict[str, Range | list[Any]]


def space_of(grids: Sequence[str], ranges: Sequence[str]) -> Space:
    """The keys to search: the values of a ``--grid`` are choices, a ``--range`` is an interval."""
    space: Space = dict(axes_of(grids))
    for option in ranges:
        form = re.fullmatch(r"\s*([^=:]+)=([^:]+):([^:]+?)(:log)?", option)
        try:
            low, high = (float(form[2]), float(form[3])) if form else (0.0, 0.0)
        except ValueError:
            low = high = 0.0
        log = bool(form and form[4])
        if form is None or not low < high < math.inf or (log and low <= 0):
            raise FedfewError("E102", f"--range {option}", "is not of the form key=low:high[:log]", "")
        space[form[1].strip()] = Range(low, high, log)
    if not space:
        raise FedfewError(
            "E103", "--optuna", "there is nothing to search", "Add --grid key=a,b or --range key=low:high"
        )
    return space


@dataclass(frozen=True)
class Search:
    """What is searched for one method, and with how many trials."""

    source: str | Path | dict[str, Any]
    base: Mapping[str, Any]
    keys: Space
    trials: int
    folder: Path

    @property
    def told(self) -> str:
        """The effort, as tables show it."""
        if not self.keys:
            return UNAFFECTED
        return TUNED.format(self.trials, ", ".join(self.keys))

    def cell(self, drawn: Mapping[str, Any], **more: Any) -> Cell:
        """The cell of a trial, or of its settings with other ones."""
        own = {key: _short(drawn[key]) for key in self.keys if key in drawn} | more
        named = {METHOD: self.base[METHOD]} if METHOD in self.base else {}
        return Cell(slug(named | own), load(self.source, drawn_anew(self.base, own)), self.told if more else "")

    def winner(self, seeds: int) -> list[Cell]:
        """The settings with the best validation accuracy on ``seeds`` seeds other than the one that chose them."""
        optuna = import_optional("optuna", "fedfew[sweep]", "--optuna")
        best = _study(optuna, self.folder).best_params if self.keys else {}
        first = load(self.source, self.base).seed + 1
        return [self.cell(best, seed=seed) for seed in range(first, first + seeds)]


def searches(
    source: str | Path | dict[str, Any], base: Mapping[str, Any], keys: Space, trials: int, folder: Path
) -> list[Search]:
    """One search, or one for each method of ``--grid method.name=…``, over the settings that it has."""
    if "seed" in keys:
        raise FedfewError("E113", "--grid seed", "a search judges settings, not seeds", "Use --seeds for the winners")
    methods = keys.get(METHOD, [])
    if isinstance(methods, Range) or not methods:
        return [Search(source, base, keys, trials, folder)]
    rest = {key: values for key, values in keys.items() if key != METHOD}
    made = []
    for name in methods:
        known = settings_for("method", str(name))
        unused = CLIENT_KEYS if name == BASELINE else ()
        own = {
            key: values
            for key, values in rest.items()
            if not key.startswith(unused) and (not key.startswith("method.") or key.partition(".")[2] in known)
        }
        made.append(Search(source, {**base, METHOD: name}, own, trials, folder / str(name).replace(":", ".")))
    return made


def search(plan: Search, warn: Warn, *, anyway: bool = False, command: str = "") -> Iterator[CellEvent]:
    """Run trials until the folder's study has the requested number; those of an earlier start count."""
    folder, trials = plan.folder, plan.trials
    optuna = import_optional("optuna", "fedfew[sweep]", "--optuna")
    if not load(plan.source, plan.base).dataset.validation:
        why = "the search uses validation accuracy, and there are no validation images"
        raise FedfewError("E113", "dataset.validation", why)
    if not plan.keys:
        return
    study, states = _study(optuna, folder), optuna.trial.TrialState
    space = {key: _distribution(optuna, values) for key, values in plan.keys.items()}

    def judged(trial: Any) -> Iterator[CellEvent]:
        for event in advance([plan.cell(trial.params)], folder, warn, anyway=anyway, command=command):
            yield event
            if event.kind in ("failed", "busy"):
                study.tell(trial.number, state=states.FAIL)
            elif event.kind in ("finished", "skipped"):
                study.tell(trial.number, best_validation(event.path))

    complete = [plan.cell(trial.params) for trial in study.trials if trial.state == states.COMPLETE]
    for cell, path in zip(complete, paths(complete, folder), strict=True):
        yield CellEvent(cell, "skipped", path)
    for trial in study.trials:  # trials that were running when the search was interrupted are resumed
        if trial.state == states.RUNNING and trial.params.keys() == space.keys():
            yield from judged(trial)
        elif trial.state == states.RUNNING:
            study.tell(trial.number, state=states.FAIL)
    while sum(trial.state.is_finished() for trial in study.trials) < trials:
        try:
            trial = study.ask(space)
        except ValueError as error:
            why = f"the folder holds a search over other values ({error})"
            raise FedfewError("E113", "--out", why, "Give another folder, or the same values as before") from None
        yield from judged(trial)


def _distribution(optuna: Any, values: Range | list[Any]) -> Any:
    if isinstance(values, Range):
        return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)
    return optuna.distributions.CategoricalDistribution(values)


def best_validation(path: Path) -> float:
    """The objective: the best validation accuracy of a run, never a number from the test images."""
    return max((v for r in Run.open(path).records if (v := r["validation"]) is not None), default=0.0)


def _short(value: Any) -> Any:
    """Round to three digits: a number that a person can give with --set."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _study(optuna: Any, folder: Path) -> Any:
    """The folder's study, created if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL)))
    study = optuna.create_study(storage=storage, study_name="fedfew", direction="maximize", load_if_exists=True)
    # the same command draws the same values; a continued search does not draw those of its first trials again
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
    return study
