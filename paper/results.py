"""The results of a reproduction, collected from its run folders: finished runs first, others marked."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.runs.folder import CONFIG, PLANS
from fedfew.runs.run import Run
from fedfew.runs.statistics import Interval
from fedfew.runs.summary import HEADLINE
from fedfew.studies.compare_tables import as_csv
from fedfew.studies.sweep import Cell, index
from paper.arms import FIGURES, Arm, Plan, arms_of, cells

RUNS = "runs"
ArmKey = tuple[str, str]


@dataclass(frozen=True, eq=False)
class ArmResult:
    """The results of one arm's runs, by seed; unfinished runs count only while no run of the arm is finished."""

    arm: Arm
    runs: tuple[Run, ...]
    wanted: int
    at: int | None = None
    """The round at which its runs are read, if some run of the figure was cut short."""

    @property
    def finished(self) -> bool:
        """Whether every planned run is finished, and read at its end."""
        return self.at is None and len(self.runs) == self.wanted and all(run.finished for run in self.runs)

    @property
    def partial(self) -> bool:
        """Whether its numbers come from unfinished runs, or from before their end."""
        return self.at is not None or any(not run.finished for run in self.runs)

    @cached_property
    def read(self) -> tuple[Run, ...]:
        """The runs, cut to the round at which they are compared."""
        return self.runs if self.at is None else tuple(run.cut(self.at) for run in self.runs)

    def by_seeds(self, measure: Callable[[Run], float | None] = Run.accuracy) -> dict[tuple[int, int], float]:
        """A measure of its runs by seeds, where known."""
        return {run.seeds: value for run in self.read if (value := measure(run)) is not None}

    @property
    def accuracy(self) -> Interval | None:
        """The accuracy over the seeds."""
        return Interval.known(list(self.by_seeds().values()))

    def row(self) -> dict[str, Any]:
        """Values for tables and JSON."""
        own, best = self.accuracy, Interval.known([run.accuracy("best_by_validation") for run in self.read])
        return {
            "panel": self.arm.panel,
            "arm": self.arm.label,
            "accuracy": own.mean if own else None,
            "sd": own.sd if own else None,
            "seeds": own.n if own else 0,
            "best_by_validation": best.mean if best else None,
            "rounds": min((run.done for run in self.read), default=0),
            "of": max((run.planned for run in self.runs), default=0),
            "minutes": round(sum(run.seconds for run in self.runs) / 60, 1),
            "finished": self.finished,
        }


Results = dict[ArmKey, ArmResult]


def results(plan: Plan, figure: str, folder: Path) -> Results:
    """Every arm of a figure with its existing runs.

    They are those of the plan's configs, or else those that the plan was made with: presets change, records stay.
    """
    known, planned = index(folder / RUNS), cells(plan, [figure])[figure]
    kept = {(panel, label, seed): folder / RUNS / name for panel, label, seed, name in plan.made}
    found: Results = {}
    for arm in arms_of(figure):
        own = [(seed, cell) for (key, seed), cell in planned.items() if key == arm.key]
        places = [known.get(cell.identity) or kept.get((*arm.key, seed)) for seed, cell in own]
        begun = [
            run for place in places if place and (place / CONFIG).is_file() and last_scored(run := Run.open(place))
        ]
        done = tuple(run for run in begun if run.finished)
        found[arm.key] = ArmResult(arm, done or tuple(begun), plan.seeds)
    return level(found)


def level(found: Results) -> Results:
    """If a run was cut short, read all runs of the figure at the last round that was scored in all of them."""
    runs = [run for arm in found.values() for run in arm.runs]
    if all(run.finished for run in runs):
        return found
    least = min(last_scored(run) for run in runs)
    return {key: replace(arm, at=least) for key, arm in found.items()}


def last_scored(run: Run) -> int:
    """The last round after which its model was scored; 0 if none was."""
    if run.finished:
        return run.done
    return next((r["round"] for r in reversed(run.records) if r["accuracy"] is not None), 0)


def remember(folder: Path, figures: Sequence[str], plan: Plan, command: str) -> None:
    """Save how figures were requested, so that they can be drawn again without repeating the options."""
    plans = known_plans(folder) if (folder / PLANS).is_file() else {}
    planned = cells(plan, [name for name in figures if name in FIGURES])
    plans |= {name: (replace(plan, made=_made(planned.get(name, {}))), command) for name in figures}
    written = {name: _as_json(*entry) for name, entry in plans.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLANS, json.dumps(written, indent=1, ensure_ascii=False).encode())


def _made(planned: Mapping[tuple[ArmKey, int], Cell]) -> tuple[tuple[str, str, int, str], ...]:
    return tuple((*arm, seed, cell.folder) for (arm, seed), cell in planned.items())


def _as_json(plan: Plan, command: str) -> dict[str, Any]:
    return asdict(plan) | {"overrides": dict(plan.overrides), "command": command}


def known_plans(folder: Path) -> dict[str, tuple[Plan, str]]:
    """For each requested figure: its plan and the command."""
    place = folder / PLANS
    try:
        content = json.loads(place.read_text("utf-8"))
        return {
            name: (Plan(**{k: v for k, v in entry.items() if k != "command"}), str(entry["command"]))
            for name, entry in content.items()
        }
    except FileNotFoundError:
        what = "contains no reproduction"
        raise FedfewError("E302", str(folder), what, "Run `python -m paper fig4` first, or give its --out") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FedfewError("E309", str(place), f"is damaged ({error})", "Run `python -m paper` again") from None


def curves_csv(found: Results) -> bytes:
    """One line for each round of each run."""
    keys = ("round", "accuracy", "validation", "loss", "coverage", "correct")
    rows = [
        {"panel": panel, "arm": label, "seed": run.seed, "finished": run.finished}
        | {key: record.get(key) for key in keys}
        for (panel, label), arm in found.items()
        for run in arm.runs
        for record in run.records
    ]
    return as_csv(rows, ["panel", "arm", "seed", "finished", *keys])


def table_csv(found: Results) -> bytes:
    """One line for each arm."""
    rows = [arm.row() | {"measure": HEADLINE} for arm in found.values()]
    return as_csv(rows, list(rows[0]) if rows else [])
