"""The search behind the table of all methods: the same trials for every arm, judged on validation images.

    python -m benchmarks.method_search digits|cifar-noniid [--trials N] [--only NAME,NAME] [--jobs N]
                                       [--out DIR]

First the server alone: the augmentation, schedule, step size, weight decay and averaging over rounds that are best for
labels alone, by ``fedfew sweep --optuna`` (TPE, seeded); every arm uses this recipe. Then for each arm (`pooled` has no
clients) the step size of its clients, each of five once. The split is a separate one, whose seed is in no table. All
trials are saved in benchmarks/search/TASK.csv; the table uses the best line of each arm. A recipe is judged by its best
round, as every such sweep; a step by the mean of the last five rounds, as the table reads the test images.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedfew.runs.run import Run

Overrides = dict[str, Any]
SEED = 100
"""Seed of model, cohorts and split; the tables have 0, 1, 2, …"""
RECIPE: dict[str, list[Any]] = {
    "server.augment": ["weak", "strong"],
    "server.schedule": ["constant", "cosine"],
    "server.lr": [0.02, 0.05, 0.1],
    "server.weight_decay": [0.0, 0.0005, 0.005],
    "evaluate.ema": [0.0, 0.5, 0.8],
}
STEPS: list[Any] = [0.005, 0.01, 0.02, 0.05, 0.1]
"""client.lr of every arm's trials."""
COLUMNS = ("arm", "trial", "validation", "settings")


def rows(path: Path) -> list[dict[str, str]]:
    """The trials in a CSV file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def best(path: Path, arm: str) -> Overrides:
    """The settings with the best validation accuracy, the first of several; empty if nothing was searched."""
    lines = [row for row in rows(path) if row["arm"] == arm]
    if not lines:
        return {}
    chosen: Overrides = json.loads(max(lines, key=lambda row: float(row["validation"]))["settings"])
    return chosen


def last_five(run: "Run", measure: Literal["accuracy", "validation"], upto: int | None = None) -> float:
    """The mean of the last five rounds (up to ``upto``): a single round is a sample of five clients."""
    done = len(run.records) if upto is None else upto
    return float(mean([a for r in run.records[max(done - 5, 0) : done] if (a := r[measure]) is not None]))


def search_recipe(key: str, trials: int, folder: Path) -> Iterator[tuple[Overrides, Path]]:
    """The trials of server-only training; those of an interrupted search count."""
    from benchmarks.method_tasks import SERVER_ONLY, TASKS, config_of

    from fedfew.config.files import flat
    from fedfew.interface.console import err
    from fedfew.studies.search import Search, search

    base = config_of(TASKS[key], SERVER_ONLY, SEED, "").document
    # the start depends on the searched settings, so a warm-up of that length replaces it
    base["method"]["warmup"] = TASKS[key].start_epochs + base["server"]["epochs"]
    runs_folder = folder / f"{key}-{SERVER_ONLY}"
    plan = Search(base, {}, dict(RECIPE), trials, runs_folder)
    for event in search(plan, err.print, command="benchmarks.method_search"):
        if event.kind in ("finished", "skipped"):
            yield {name: flat(event.cell.config.document)[name] for name in RECIPE}, event.path


def search_step(key: str, arm: str, folder: Path, jobs: int = 0) -> Iterator[tuple[Overrides, Path]]:
    """An arm's trials."""
    from benchmarks.method_tasks import TASKS, config_of, warm_cell

    from fedfew.config.schema import load
    from fedfew.interface.batch import run_all
    from fedfew.studies.sweep import Cell, index

    common, runs_folder = folder / f"{key}-start", folder / f"{key}-{'-'.join(arm.split())}"
    start = warm_cell(TASKS[key], SEED)
    run_all([start], common, jobs=jobs, command="benchmarks.method_search")
    base = config_of(TASKS[key], arm, SEED, str(index(common)[start.identity].absolute())).document
    cells = {step: Cell(f"step-{step:g}", load(base, {"client.lr": step})) for step in STEPS}
    run_all(list(cells.values()), runs_folder, jobs=jobs, command="benchmarks.method_search")
    known = index(runs_folder)
    yield from (({"client.lr": step}, known[cell.identity]) for step, cell in cells.items() if cell.identity in known)


def tried(key: str, arm: str, trials: int, folder: Path, jobs: int = 0) -> list[dict[str, str]]:
    """The lines of an arm."""
    from benchmarks.method_tasks import SERVER_ONLY

    from fedfew.runs.run import Run
    from fedfew.studies.search import best_validation

    result: dict[str, dict[str, str]] = {}
    recipe = arm == SERVER_ONLY
    for settings, path in search_recipe(key, trials, folder) if recipe else search_step(key, arm, folder, jobs):
        value = best_validation(path) if recipe else last_five(Run.open(path), "validation")
        row = {"arm": arm, "trial": str(len(result)), "validation": f"{value:.4f}", "settings": json.dumps(settings)}
        result.setdefault(row["settings"], row)
    return list(result.values())


def main() -> None:
    """Search the requested arms, and write the results."""
    from benchmarks.method_tasks import ARMS, FOUND, POOLED, SERVER_ONLY, TASKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--trials", type=int, default=12, help="of server-only training")
    parser.add_argument("--only", help=f"of: {', '.join(ARMS)}")
    parser.add_argument("--jobs", type=int, default=0, help="an arm's runs at a time, one process each")
    parser.add_argument("--out", type=Path, default=Path("runs/method-search"))
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [name for name in ARMS if name != POOLED]
    path = FOUND / f"{TASKS[options.task].key}.csv"
    for arm in sorted(names, key=lambda name: name != SERVER_ONLY):
        kept = [row for row in rows(path) if row["arm"] != arm]
        kept += tried(options.task, arm, options.trials, options.out, options.jobs)
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
        print(arm, best(path, arm))


if __name__ == "__main__":
    main()
