"""What a reader of a table of results must know: what its numbers cover, and where a row could mislead."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedfew.runs.intervals import FEWEST, MOST_SEEDS, POWER
from fedfew.runs.run import NAMES, Run
from fedfew.studies.bounds import UNAFFECTED, Pairing, knows_names, searched

if TYPE_CHECKING:
    from fedfew.studies.compare import Row

NOT_SEARCHED = "not searched for"
SCENE = ("dataset.name", "dataset.path", "model.name", "model.train")
"""Runs that share these have the same class names and backbone."""


def row_notes(row: "Row", runs: Sequence[Run], mixed: Sequence[str], faults: Iterable[str]) -> list[str]:
    """Where a row could mislead; ``mixed`` are keys in which its runs differ."""
    notes = [f"{row.label} averages over runs that differ in {', '.join(mixed)}: add them to --by"] if mixed else []
    notes += [f"{row.label}: {fault}" for fault in faults]
    if row.unpublished:
        notes.append(f"* {row.label} is not as published: {row.unpublished}")
    if early := [f"{run.done} of {run.planned}" for run in runs if run.final.get("stopped")]:
        notes.append(f"{row.label} ended early, after round {', '.join(early)}: {runs[0].flat['evaluate.stop']}")
    if row.partial:
        reached = ", ".join(f"{run.done} of {run.planned}" for run in runs if not run.finished)
        notes.append(f"{row.label} includes runs that are not finished, at round {reached}")
    return notes


def table_notes(rows: "Sequence[Row]", runs: Sequence[Run], pairing: Pairing) -> list[str]:
    """What the table's numbers mean, and where it could mislead as a whole."""
    notes = []
    if few := ", ".join(row.label for row in rows if row.accuracy.n < FEWEST):
        notes.append(f"Fewer than three seeds give no interval, only the values: {few}")
    if any(row.accuracy.low is not None for row in rows):
        notes.append(_covered(rows, runs))
    seeds = {str(run.path): run.seeds for run in runs}
    if len({frozenset(seeds[path] for path in row.runs) for row in rows}) > 1:
        notes.append("Rows have different seeds: their means are of other data, only differences are paired")
    tested = [row for row in rows if row.p is not None]
    if tested:
        several = f", corrected for {len(tested)} comparisons (Holm)" if len(tested) > 1 else ""
        notes.append(f"p: paired t-test against {pairing.name} over seeds{several}")
    if needed := ", ".join(filter(None, (_needed(row) for row in tested if not row.significant))):
        notes.append(f"Seeds needed to find a difference of this size ({100 * POWER:.0f} % power): {needed}")
    if len({row.tuned for row in rows}) > 1:
        efforts = {searched(row.tuned)[0] or row.tuned for row in rows if row.tuned != UNAFFECTED}
        title = "Unequal effort" if len(efforts) > 1 else "Equal effort"
        notes.append(f"{title}: " + "; ".join(f"{row.label}: {row.tuned}" for row in rows))
    elif rows[0].tuned != NOT_SEARCHED:
        notes.append(f"Settings of all rows: {rows[0].tuned}")
    if not pairing:
        notes.append("No server-only run among these, so no difference is shown")
    scenes = {tuple(run.flat.get(key) for key in SCENE): run for run in runs}
    if not any(run.method == NAMES for run in runs) and any(map(knows_names, scenes.values())):
        notes.append("The backbone knows classes by name: a labels-names run would show what is known without any site")
    return notes


def _covered(rows: "Sequence[Row]", runs: Sequence[Run]) -> str:
    """What the intervals of a table cover."""
    several = [set(row.runs) for row in rows if row.accuracy.n > 1]
    if any(len({run.seeds[1] for run in runs if str(run.path) in own}) == 1 for own in several):
        return "All seeds of a row have the same labels and clients: intervals cover the training alone"
    fixed = all(run.flat.get("dataset.split") == "standard" and not run.flat.get("dataset.test") for run in runs)
    same = ", but not of the test images, which are always the same" if fixed else ""
    return f"Intervals cover the draw of labels and clients and the training{same}"


def _needed(row: "Row") -> str:
    needed = row.difference.seeds_needed if row.difference else None
    if needed is None:
        return ""
    return f"{row.label} {needed if needed <= MOST_SEEDS else f'more than {MOST_SEEDS:,}'}"
