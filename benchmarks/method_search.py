"""The search behind the table of all methods: the same number of trials for every arm, judged on validation images.

    python -m benchmarks.method_search digits|cifar-noniid [--trials N] [--only NAME,NAME] [--out DIR]

First the server alone: the augmentation, schedule, step size, weight decay and averaging over rounds that are best for
labels alone; every arm uses this recipe. Then for each arm the step size and momentum of its clients (`pooled` has
none). It is ``fedfew sweep --optuna`` (TPE, seeded) on a separate split, whose seed is in no table. All trials and
their results are saved in benchmarks/search/TASK.csv; the table reads the best line of each arm.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

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
CLIENTS: dict[str, list[Any]] = {
    "client.lr": [0.005, 0.01, 0.02, 0.05],
    "client.momentum": [0.0, 0.9],
}
COLUMNS = ("arm", "trial", "validation", "settings")


def rows(path: Path) -> list[dict[str, str]]:
    """The trials in a CSV file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def best(path: Path, arm: str) -> Overrides:
    """The settings with the best validation accuracy, the first of several; empty if nothing was searched."""
    tried = [row for row in rows(path) if row["arm"] == arm]
    if not tried:
        return {}
    chosen: Overrides = json.loads(max(tried, key=lambda row: float(row["validation"]))["settings"])
    return chosen


def search(key: str, arm: str, trials: int, folder: Path) -> list[dict[str, str]]:
    """An arm's trials; those of an interrupted search count."""
    from benchmarks.method_tasks import SERVER_ONLY, TASKS, config_of, warm_cell

    from fedfew.interface.batch import run_all
    from fedfew.interface.console import err
    from fedfew.studies.sweep import index
    from fedfew.studies.sweep_search import best_validation, search

    task, common, space = TASKS[key], folder / f"{key}-start", CLIENTS
    if arm == SERVER_ONLY:  # the start depends on the searched settings, so a warm-up of that length replaces it
        base, space = config_of(task, arm, SEED, "").document, RECIPE
        base["method"]["warmup"] = task.start_epochs + base["server"]["epochs"]
    else:
        cell = warm_cell(task, SEED)
        run_all([cell], common, command="benchmarks.method_search")
        base = config_of(task, arm, SEED, str(index(common)[cell.identity].absolute())).document
    found: dict[str, dict[str, str]] = {}
    place = folder / f"{key}-{'-'.join(arm.split())}"
    for event in search(base, {}, dict(space), trials, place, err.print, command="benchmarks.method_search"):
        if event.kind in ("finished", "skipped"):
            settings = {name: event.cell.config[name] for name in space}
            value = f"{best_validation(event.path):.4f}"
            text = json.dumps(settings)
            found.setdefault(text, {"arm": arm, "trial": str(len(found)), "validation": value, "settings": text})
    return list(found.values())


def main() -> None:
    """Search the requested arms, and write the results."""
    from benchmarks.method_tasks import ARMS, FOUND, POOLED, SERVER_ONLY, TASKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--only", help=f"of: {', '.join(ARMS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/method-search"))
    given = parser.parse_args()
    names = given.only.split(",") if given.only else [name for name in ARMS if name != POOLED]
    path = FOUND / f"{TASKS[given.task].key}.csv"
    for arm in sorted(names, key=lambda name: name != SERVER_ONLY):
        tried = search(given.task, arm, given.trials, given.out)
        kept = [row for row in rows(path) if row["arm"] != arm] + tried
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
        print(arm, best(path, arm))


if __name__ == "__main__":
    main()
