"""The results of a figure: the runs of every arm, finished ones first, others marked."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedfew.runs.intervals import Interval
from fedfew.runs.run import Run
from fedfew.studies.tables import as_csv
from paper.arms import Arm
from paper.plan import ArmKey, arms_of
from paper.study import Request, Study


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
        return self.runs if self.at is None else tuple(cut(run, self.at) for run in self.runs)

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


def results(figure: str, request: Request, study: Study) -> Results:
    """Every arm of a figure with its runs so far."""
    arms: Results = {}
    for arm in arms_of(figure):
        named = (study.run(name) for name in request.runs.get(arm.panel, {}).get(arm.label, ()))
        begun = tuple(run for run in named if run is not None and last_scored(run))
        done = tuple(run for run in begun if run.finished)
        arms[arm.key] = ArmResult(arm, done or begun, request.seeds)
    return level(arms)


def level(arms: Results) -> Results:
    """If a run was cut short, read all runs of the figure at the last round that was scored in all of them."""
    runs = [run for arm in arms.values() for run in arm.runs]
    if all(run.finished for run in runs):
        return arms
    least = min(last_scored(run) for run in runs)
    return {key: replace(arm, at=least) for key, arm in arms.items()}


def cut(run: Run, rounds: int) -> Run:
    """The run as it was after this many rounds."""
    if rounds >= run.done:
        return run
    kept = {"name": run.name, "document": run.document, "environment": run.environment}
    return run.with_(**kept, records=run.records[:rounds], finished=False)


def last_scored(run: Run) -> int:
    """The last round after which its model was scored; 0 if none was."""
    if run.finished:
        return run.done
    return next((r["round"] for r in reversed(run.records) if r["accuracy"] is not None), 0)


def as_table(arms: Results) -> bytes:
    """One line for each round of each run that was scored."""
    keys = ("round", "accuracy", "validation", "loss", "coverage", "correct")
    rows = [
        {"panel": panel, "arm": label, "seed": run.seed} | {key: record.get(key) for key in keys}
        for (panel, label), arm in arms.items()
        for run in arm.runs
        for record in run.records
        if record["accuracy"] is not None
    ]
    return as_csv(rows, ["panel", "arm", "seed", *keys])
