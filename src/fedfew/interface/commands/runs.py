"""fedfew ls, track and archive: list runs, send their rounds to TensorBoard or MLflow, copy their records. No torch."""

from pathlib import Path
from typing import Any

from rich.table import Column, Table

from fedfew.core.errors import FedfewError
from fedfew.interface.console import out as console
from fedfew.interface.console import percent, print_json
from fedfew.interface.sinks import to_mlflow, to_tensorboard
from fedfew.runs.folder import PLANS, copy_plans, copy_records, find_runs, named_runs
from fedfew.runs.run import Run, name_below


def ls(folder: Path, json: bool) -> None:
    """List runs with their state and accuracy."""
    rows: list[dict[str, Any]] = []
    for path in find_runs(folder):
        try:
            run = Run.open(path)
            row: dict[str, Any] = {
                "state": run.state,
                "method": run.method,
                "aggregator": run.aggregator,
                "dataset": run.dataset,
                "seed": run.seed,
                "rounds": run.done,
                "of": run.planned,
                "accuracy": run.accuracy(),
            }
        except FedfewError as fault:  # a damaged run does not hide the others
            row = {"state": f"unreadable ({fault.code})"}
        rows.append({"run": str(path)} | row)
    if json:
        print_json({"runs": rows})
        return
    table = Table(Column("run", overflow="fold"), "method", "dataset", "seed", "rounds", "accuracy", "state")
    for row in rows:
        rounds = f"{row['rounds']}/{row['of']}" if "of" in row else ""
        shown = percent(row.get("accuracy"))
        table.add_row(
            row["run"], row.get("method"), row.get("dataset"), str(row.get("seed", "")), rounds, shown, row["state"]
        )
    console.print(table if rows else f"no runs below {folder}")


def track(runs: tuple[Path, ...], to: str, out: str, json: bool) -> None:
    """Send a run's new rounds to TensorBoard or MLflow; safe to repeat during the run."""
    if to not in ("tensorboard", "mlflow"):
        raise FedfewError("E105", "--to", f"{to!r} is unknown", "Known: tensorboard, mlflow")
    written = {}
    for path in named_runs(runs):
        run = Run.open(path)
        written[str(path)] = to_tensorboard(run, Path(out)) if to == "tensorboard" else to_mlflow(run, out)
    if json:
        print_json({"to": to, "out": out, "rounds": written})
        return
    for name, rounds in written.items():
        console.print(f"{name}: {rounds} new rounds", soft_wrap=True)
    show = f"tensorboard --logdir {out}" if to == "tensorboard" else f"mlflow ui --backend-store-uri {out}"
    console.print(f"open them with: {show}", soft_wrap=True)


def archive(folder: Path, to: Path, json: bool) -> None:
    """Copy the records of finished runs, without models and checkpoints: enough for compare and reproduce.

    The copies are text and small enough for a repository, so that others can make every table and figure again.
    """
    runs = [Run.open(path) for path in named_runs([folder])]
    if to.resolve().is_relative_to(folder.resolve()):
        raise FedfewError("E301", str(to), f"is inside {folder}", "Give a folder elsewhere")
    done = [run for run in runs if run.finished]
    for run in done:
        copy_records(run.path, to / name_below(folder, run.path))
    for plan in sorted(folder.rglob(PLANS)) if done else ():
        copy_plans(plan, to / plan.relative_to(folder))
    left = [str(run.path) for run in runs if not run.finished]
    if json:
        print_json({"to": str(to), "copied": len(done), "not_finished": left})
        return
    count = f"{len(done)} run{'' if len(done) == 1 else 's'}"
    console.print(f"{to}: the records of {count}", markup=False, soft_wrap=True)
    for name in left:
        console.print(f"left out, not finished: {name}", markup=False, soft_wrap=True)
