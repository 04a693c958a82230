"""fedfew sweep and learning-curve: a config over many values, as runs in one resumable folder."""

import shlex
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.core.text import percent
from fedfew.data import noun_of
from fedfew.interface.batch import BatchResult, follow_all, run_all, run_with_names
from fedfew.interface.charts import Lines, Series, to_csv
from fedfew.interface.charts.printed import draw
from fedfew.interface.charts.printed import save as save_chart
from fedfew.interface.commands.own import is_data, plan_folder
from fedfew.interface.commands.run import scaled_overrides
from fedfew.interface.console import Answer, note, out, print_table, say, warn
from fedfew.interface.progress import counting
from fedfew.runs.folder import CONFIG
from fedfew.runs.run import Run
from fedfew.runs.session import assemble
from fedfew.studies.learning_curve import gains, halves, pairs, sentence
from fedfew.studies.parallel import check_jobs
from fedfew.studies.search import best_validation, search, searches, space_of
from fedfew.studies.sweep import axes_of, cells_of, repeated
from fedfew.studies.tables import accuracy_text, points
from fedfew.studies.verdict import Gain

WINNERS = "winners"
"""Folder of the runs that repeat what a search has chosen."""


def sweep(
    config: str,
    grid: tuple[str, ...],
    seeds: int,
    fix: str,
    keep_settings: bool,
    optuna: int,
    ranges: tuple[str, ...],
    scale: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    jobs: int,
    until: int,
    anyway: bool,
) -> Answer:
    """Run every combination of the grid's values; finished runs are kept, interrupted ones continued."""
    base = scaled_overrides(config, scale, overrides)
    folder = out or Path("runs") / f"sweep-{Path(config).stem}"
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    if jobs:
        check_jobs(jobs)
    if optuna:
        if fix or keep_settings:
            raise FedfewError("E113", "--optuna", "a search draws settings", "Leave out --fix and --keep-settings")
        if until:
            raise FedfewError("E113", "--until", "a search judges finished trials", "Use --set rounds=N instead")
        if jobs > 1:
            raise FedfewError("E113", "--jobs", "trials run one after another, each chosen from the results before", "")
        plans = searches(config, base, space_of(grid, ranges), optuna, folder)
        events = chain.from_iterable(search(plan, warn, anyway=anyway, command=command) for plan in plans)
        tally = follow_all(events, [], command)
        if seeds:
            folder /= WINNERS
            tally = run_with_names([cell for plan in plans for cell in plan.winner(seeds)], folder, command=command)
    else:
        if ranges:
            raise FedfewError("E113", "--range", "is only for a search", "Add --optuna N, or give values with --grid")
        if not grid and not seeds:
            raise FedfewError("E103", "--grid", "there is nothing to vary", "Write e.g. --grid partition.mu=0.1,1,10")
        base, axes = repeated(config, base, axes_of(grid), seeds, fix)
        cells = cells_of(config, base, axes, keep_settings=keep_settings)
        tally = run_with_names(cells, folder, jobs=jobs, until=until, anyway=anyway, command=command)
    return _told(tally, folder)


def _told(tally: BatchResult, folder: Path) -> Answer:
    rows: list[dict[str, Any]] = []
    for event in {event.cell.identity: event for event in tally.ends}.values():
        run = Run.open(event.path) if (event.path / CONFIG).is_file() else None
        rows.append(
            {
                "run": str(event.path) if run else None,
                "cell": event.cell.name,
                "not_as_published": run.unpublished if run else "",
                "rounds": run.done if run else 0,
                "finished": bool(run and run.finished),
                "accuracy": run.accuracy() if run else None,
                "best_validation": best_validation(run.path) if run and run.done else None,
            }
        )
    rows.sort(key=lambda row: -(row["best_validation"] or 0.0))
    result = {"folder": str(folder), "runs": tally.as_json(), "cells": rows, "best": rows[0] if rows else None}
    return result, lambda: _show(rows, folder)


def _show(rows: list[dict[str, Any]], folder: Path) -> None:
    texts = []
    for row in rows:
        state = str(row["rounds"]) if row["finished"] else f"{row['rounds']}, not finished"
        star = "*" if row["not_as_published"] else ""
        texts.append([row["cell"] + star, state, percent(row["best_validation"]), percent(row["accuracy"])])
    print_table(("run", "rounds", "best validation", "accuracy"), texts, "by validation accuracy, best first")
    for text in sorted({row["not_as_published"] for row in rows if row["not_as_published"]}):
        note(f"* not as published: {text}")
    say(f"folder: {folder}; `fedfew compare {folder}` averages over the seeds")


def learning_curve(
    source: str, labels: str, seeds: int, overrides: dict[str, Any], out: Path | None, jobs: int
) -> Answer:
    """Draw accuracy against the number of labels, with the sites' images and without; finished runs are kept."""
    folder, folds, most, fewest = Path(source), 0, 0, 2
    if is_data(folder):
        plan = plan_folder(folder, overrides)
        config, folds, most, fewest = plan.config, plan.folds, plan.suggestion.labels, plan.suggestion.classes
    else:
        config = load(source, overrides)
    counts = _counts(labels) or halves(most or config.labels, fewest)
    target = out or Path("runs") / f"learning-curve-{folder.resolve().stem}"
    planned = pairs(config, counts, seeds, folds)
    if config.model.frozen:
        with counting(f"features of {noun_of(config.dataset.name)}") as report:
            assemble(config, report)  # computed once and shared by all runs
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    tally = run_all([cell for pair in planned for cell in (pair.base, pair.own)], target, jobs=jobs, command=command)
    for fault in tally.failed.values():
        raise fault
    curve = gains(planned, target)
    chart = _chart(curve)
    write_atomically(target / "learning-curve.csv", to_csv(chart).encode())
    files = save_chart(draw(chart), target / "learning-curve")
    about = {"folder": str(target), "folds": folds, "figures": [str(path) for path in files]}
    steps = [{"labels": labels} | gain.as_json() for labels, gain in curve.items()]
    return about | {"sentence": sentence(curve), "steps": steps}, lambda: _show_curve(curve, target, folds)


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and 0 < int(word) < 10**9 for word in words):
        raise FedfewError("E103", "--labels", f"{text!r} is not a list of numbers", "Write e.g. --labels 10,20,40")
    return sorted({int(word) for word in words})


def _chart(curve: dict[int, Gain]) -> Lines:
    """Both curves with their intervals."""
    xs, own, base = [float(labels) for labels in curve], *zip(*((g.own, g.base) for g in curve.values()), strict=True)
    series = [
        Series(name, xs, [span.mean for span in spans], colour, spread=[span.half for span in spans])
        for colour, (name, spans) in enumerate((("with the sites' data", own), ("labels alone", base)))
    ]
    title = "Accuracy against labels"
    return Lines("learning-curve", title, "labels", "accuracy", series, "percent", about=sentence(curve))


def _show_curve(curve: dict[int, Gain], folder: Path, folds: int) -> None:
    columns = ("labels", "with the sites' data", "labels alone", "difference")
    rows = [
        [str(labels), accuracy_text(gain.own), accuracy_text(gain.base), points(gain.difference)]
        for labels, gain in curve.items()
    ]
    print_table(columns, rows, "accuracy in %, 95 % intervals", words=0)
    out.print(sentence(curve), style="bold", markup=False, soft_wrap=True)
    if folds:
        note(f"There is no test set: measured by cross-validation on the labels, {folds} folds.")
    say(f"figure: {folder / 'learning-curve.png'}")
