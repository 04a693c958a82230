"""The results of a reproduction, gathered from its run folders whenever asked: finished runs first, others marked."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.studies.outcomes import WHICH, Outcome, read_outcome, spread
from fedfew.studies.reproduce import Arm, Plan, arms_of, cells
from fedfew.studies.sweep import index

PLANS, RUNS = "reproduce.json", "runs"
ArmKey = tuple[str, str]


@dataclass(frozen=True, eq=False)
class ArmResult:
    """What the runs of one arm reached, by seed; unfinished runs count only while no run of the arm is finished."""

    arm: Arm
    outcomes: tuple[Outcome, ...]
    wanted: int
    at: int | None = None
    """The round at which its runs are read, where some run of the figure was cut short."""

    @property
    def finished(self) -> bool:
        """Whether every run that was asked for is finished, and read at its end."""
        return self.at is None and len(self.outcomes) == self.wanted and all(o.finished for o in self.outcomes)

    @property
    def partial(self) -> bool:
        """Whether its numbers come from runs that are not finished, or from before their end."""
        return self.at is not None or any(not o.finished for o in self.outcomes)

    @property
    def read(self) -> tuple[Outcome, ...]:
        """The runs as far as they are compared."""
        return self.outcomes if self.at is None else tuple(o.cut(self.at) for o in self.outcomes)

    @property
    def values(self) -> dict[tuple[int, int], float]:
        """Accuracy by seeds."""
        return {o.seeds: value for o in self.read if (value := o.accuracy()) is not None}

    @property
    def mean(self) -> float | None:
        return spread(list(self.values.values()))[0] if self.values else None

    @property
    def sd(self) -> float | None:
        return spread(list(self.values.values()))[1] if self.values else None

    def row(self) -> dict[str, Any]:
        """For tables and JSON."""
        best = [v for o in self.read if (v := o.accuracy("best_by_validation")) is not None]
        return {
            "panel": self.arm.panel,
            "arm": self.arm.label,
            "accuracy": self.mean,
            "sd": self.sd,
            "seeds": len(self.values),
            "best_by_validation": spread(best)[0] if best else None,
            "rounds": min((o.rounds for o in self.read), default=0),
            "of": max((o.of for o in self.outcomes), default=0),
            "minutes": round(sum(o.seconds for o in self.outcomes) / 60, 1),
            "finished": self.finished,
        }


Results = dict[ArmKey, ArmResult]


def results(plan: Plan, figure: str, folder: Path) -> Results:
    """Every arm of a figure with the runs that are there."""
    known, planned = index(folder / RUNS), cells(plan, [figure])[figure]
    found: Results = {}
    for arm in arms_of(figure):
        paths = [known[c.identity] for (key, _), c in planned.items() if key == arm.key and c.identity in known]
        read = [o for o in map(read_outcome, paths) if o.rounds]
        done = tuple(o for o in read if o.finished)
        found[arm.key] = ArmResult(arm, done or tuple(read), plan.seeds)
    return level(found)


def level(found: Results) -> Results:
    """Where a run was cut short, all runs of the figure are read at the round that all have reached."""
    outcomes = [o for arm in found.values() for o in arm.outcomes]
    if all(o.finished for o in outcomes):
        return found
    least = min(o.rounds for o in outcomes)
    return {key: replace(arm, at=least) for key, arm in found.items()}


def remember(folder: Path, figures: Sequence[str], plan: Plan, command: str) -> None:
    """Note how figures were asked for, so that they can be drawn again without repeating the options."""
    plans = known_plans(folder) if (folder / PLANS).is_file() else {}
    written = {name: _as_json(*entry) for name, entry in plans.items()}
    written |= {name: _as_json(plan, command) for name in figures}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLANS, json.dumps(written, indent=1, ensure_ascii=False).encode())


def _as_json(plan: Plan, command: str) -> dict[str, Any]:
    return asdict(plan) | {"overrides": dict(plan.overrides), "command": command}


def known_plans(folder: Path) -> dict[str, tuple[Plan, str]]:
    """For each figure that was asked for: its plan and the command."""
    place = folder / PLANS
    try:
        content = json.loads(place.read_text("utf-8"))
        return {
            name: (Plan(**{k: v for k, v in entry.items() if k != "command"}), str(entry["command"]))
            for name, entry in content.items()
        }
    except FileNotFoundError:
        what = "holds no reproduction"
        raise FedfewError("E302", str(folder), what, "Run `fedfew reproduce fig4` first, or give its --out") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise FedfewError("E309", str(place), f"is damaged ({error})", "Run `fedfew reproduce` again") from None


def curves_csv(found: Results) -> bytes:
    """One line for each round of each run."""
    keys = ("round", "accuracy", "validation", "loss", "coverage", "correct")
    rows = [
        {"panel": panel, "arm": label, "seed": outcome.seeds[0], "finished": outcome.finished}
        | {key: record.get(key) for key in keys}
        for (panel, label), arm in found.items()
        for outcome in arm.outcomes
        for record in outcome.records
    ]
    return as_csv(rows, ["panel", "arm", "seed", "finished", *keys])


def table_csv(found: Results) -> bytes:
    """One line for each arm."""
    rows = [arm.row() | {"measure": WHICH} for arm in found.values()]
    return as_csv(rows, list(rows[0]) if rows else [])


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
