"""fedfew demo: does asking unlabeled clients help? Three methods on one split, offline, in under a minute."""

from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfew.interface.console import err, out, percent, print_json
from fedfew.interface.options import Json
from fedfew.interface.progress import follow
from fedfew.interface.report import write_report
from fedfew.runs.experiment import Experiment
from fedfew.runs.folder import new_folder
from fedfew.runs.run import Run
from fedfew.runs.summary import HEADLINE
from fedfew.studies.bounds import METHOD
from fedfew.studies.compare import compare
from fedfew.studies.compare_tables import difference_text

METHODS: dict[str, dict[str, Any]] = {
    "server-only": {"method.warmup": 300},
    # as published but for the server's recipe, which all share: small plain steps at the clients, τ = 0.8, all λ = 1
    "fedmix": {"client.lr": 0.001, "client.momentum": 0.0, "client.epochs": 1, "client.batch": 64},
    "fedfew": {"method.warmup": 300},
}
"""What is compared: the server trains alike in all of them, so each has its pair; FedMix knows no warm-up."""


def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds and show the spread.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for runs and report.")] = None,
    json: Json = False,
) -> None:
    """Compare server-only training, FedMix and fedfew on embedded digits, without a network."""
    start, folder = perf_counter(), new_folder(out, "demo")
    runs: dict[str, list[Run]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        for name, suits in METHODS.items():
            chosen = {"method.name": name, "seed": seed, "dataset.seed": seed} | suits
            experiment = Experiment.load("demo", chosen)
            session = experiment.start(folder / f"{name}-{seed}", "fedfew demo")
            follow(session, name if seeds == 1 else f"{name}, seed {seed}")
            runs[name].append(Run(session.folder))
    compared = compare([run for found in runs.values() for run in found], ["method"])
    differences = {row.key[METHOD]: difference_text(row) for row in compared.rows}
    results = {name: _result(found) | {"difference": differences[name]} for name, found in runs.items()}
    report, seconds = write_report(folder), perf_counter() - start
    if json:
        print_json({"methods": results, "seconds": round(seconds, 1), "report": str(report)})
        return
    _show(results, runs, seeds)
    err.print(f"{seconds:.0f} s; report: {report}", soft_wrap=True)


def _result(runs: list[Run]) -> dict[str, Any]:
    """Means over the seeds."""
    summaries = [run.summary for run in runs]
    accuracy = [s["accuracy"][HEADLINE] for s in summaries]
    judged = {key: [s[key] for s in summaries if s[key] is not None] for key in ("coverage", "correct")}
    return {
        "accuracy": round(mean(accuracy), 4),
        "accuracy_sd": round(stdev(accuracy), 4) if len(accuracy) > 1 else None,
        "coverage": round(mean(judged["coverage"]), 4) if judged["coverage"] else None,
        "correct": round(mean(judged["correct"]), 4) if judged["correct"] else None,
    }


def _show(results: dict[str, dict[str, Any]], runs: dict[str, list[Run]], seeds: int) -> None:
    config = runs["fedmix"][0].config
    table = Table(
        title=f"{config['labels']} labels at the server, {config['clients']} clients with unlabeled digits, "
        f"{config['rounds']} rounds" + (f", {seeds} seeds" if seeds > 1 else "")
    )
    for column in ("method", "accuracy", "against server-only, paired", "pseudo-labels", "of these correct"):
        table.add_column(column, justify="left" if column == "method" else "right")
    base = results["server-only"]["accuracy"]
    for name, result in results.items():
        spread = f" ± {100 * result['accuracy_sd']:.1f}" if result["accuracy_sd"] is not None else ""
        table.add_row(
            name,
            percent(result["accuracy"]) + spread,
            result["difference"],
            percent(result["coverage"], 0),
            percent(result["correct"], 0),
        )
    out.print(table)
    for name, result in results.items():
        if name != "server-only" and result["accuracy"] <= base:
            out.print(f"[yellow]{name} does not beat server-only training here.[/]")
