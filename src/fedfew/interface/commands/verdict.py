"""fedfew try and evaluate: what the sites' data are worth, in a sentence; and how good a model is, in detail."""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.core.text import percent
from fedfew.data import NOUNS, noun_of
from fedfew.data.dataset import Problem
from fedfew.data.images.folders import read_once
from fedfew.data.images.looks import Difference
from fedfew.inference.evaluate import evaluate_files, evaluate_run
from fedfew.interface.commands.check import (
    LOOK,
    LOOKS,
    NAME,
    FolderPlan,
    columns,
    examined,
    own_config,
    plan_folder,
    print_faults,
)
from fedfew.interface.console import note, print_json, print_table, say, warn
from fedfew.interface.console import out as console
from fedfew.interface.progress import counting, follow
from fedfew.runs.folder import new_folder
from fedfew.runs.run import Run
from fedfew.runs.session import start
from fedfew.studies.bounds import BASELINE
from fedfew.studies.verdict import FEWEST, Verdict, baseline_of, weigh

FOLDS = "folds"
SHOWN, LEAST = 5, 0.01
"""Classes shown of a site's mix: at most this many, each with at least this share."""


@read_once()
def try_folder(
    folder: Path,
    label: str,
    site: str,
    text_column: str,
    overrides: dict[str, Any],
    out: Path | None,
    allow_code: Collection[str],
    json: bool,
) -> None:
    """Check the data, choose a method, train with and without the sites' samples, and report what they add."""
    plan = plan_folder(folder, columns(label, site, text_column) | overrides, allow_code)
    config, odd = plan.config, list[Difference]()
    if config.dataset.name not in ("folder", *NOUNS):
        fault = f"{own_config(folder)} is about the dataset {config.dataset.name}, not about these files"
        raise FedfewError("E113", "dataset.name", fault, "Remove it, or use `fedfew run` with it")
    if config.dataset.name == "folder":
        _, faults, odd = examined(config)
        print_faults(*faults)
    else:
        config.dataset.source()  # a fault in a row is told before anything is written
    for reason in plan.reasons:
        note(f"· {reason}")
    target, folds = new_folder(out, f"try-{folder.resolve().stem}"), folds_of(plan, folder)
    if folds:
        lacking = f"There are no test {noun_of(config.dataset.name)}"
        note(f"{lacking}: the verdict comes from cross-validation on the labels, {folds} folds.")
    if plan.text:
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(target / NAME, plan.text.encode())
    own, verdict = _train(config, target, folds, plan.labels)
    if verdict is None:
        raise FedfewError("E310", str(target), "has no pair of runs on the same test images")
    better = own
    if verdict.gain.difference.mean < 0:  # with folds, server-only training has not seen all labels yet
        path = target / BASELINE
        better = Run.open(path) if path.exists() else _run(baseline_of(config), path, " on all labels")
    if json:
        about = {
            "runs": str(target),
            "model": str(own.path),
            "recommended": str(better.path),
            "config": str(target / NAME if plan.text else own_config(folder)),
            "method": own.method,
        }
        print_json(about | verdict.as_json() | {"different": {site.site: list(site.words) for site in odd}})
        return
    console.print(verdict.sentence, style="bold", markup=False, soft_wrap=True)
    if odd:
        names = [site.site for site in odd]
        sites = f"{', '.join(names[:-1])} and {names[-1]} {LOOK}" if names[1:] else f"{names[0]} {LOOKS}"
        folders = " ".join(shlex.quote(str(folder / "clients" / name)) for name in names)
        console.print(f"{sites}: label {FEWEST} images there.", style="bold", markup=False, soft_wrap=True)
        note(f"  fedfew label-next {own.path} {folders} -n {FEWEST}")
    lines = (f"fedfew evaluate {better.path}", f"fedfew export {better.path} --format onnx", f"fedfew watch {target}")
    for line in lines:
        note(f"  {line}")


def folds_of(plan: FolderPlan, folder: Path) -> int:
    """Folds of cross-validation; 0 if there are test images."""
    if plan.folds == 1:
        fault = "there is no test set, and a class has a single label, so that nothing can be held out"
        raise FedfewError("E206", str(folder), fault, "Label at least 2 samples of each class, or add a test set")
    return plan.folds


def _train(config: Config, target: Path, folds: int, labels: int) -> tuple[Run, Verdict | None]:
    """Server-only and the method on the same split; with folds on each fold, and then the method on all labels."""
    own: list[Run] = []
    base: list[Run] = []
    for fold in range(1, folds + 1):
        held = load(config.document, {"dataset.fold": f"{fold}/{folds}"})
        where, note = target / FOLDS / str(fold), f", fold {fold} of {folds}"
        base.append(_run(baseline_of(held), where / BASELINE, note))
        own.append(_run(held, where / config.method_name, note))
    if not folds:
        base.append(_run(baseline_of(config), target / BASELINE))
    final = _run(config, target / config.method_name, " on all labels" if folds else "")
    return final, weigh(own if folds else [final], base, labels, folds)


def _run(config: Config, target: Path, note: str = "") -> Run:
    with counting(f"features of {noun_of(config.dataset.name)}") as report:
        session = start(config, target, report=report)
    follow(session, f"{config.method_name}{note}")
    return Run(session.folder)


def evaluate(
    run: Path, folder: Path | None, group: str, sites: bool, model: str, allow_code: Collection[str], json: bool
) -> None:
    """Evaluate a model: confusion matrix, precision and recall by class, AUROC, calibration, sites."""
    trained = Run.open(run, allow_code=allow_code).using(model)
    problems: list[Problem] = []
    if folder is None:
        evaluation = evaluate_run(trained, sites=sites)
    else:
        with counting("reading images") as report:
            evaluation, problems = evaluate_files(trained, folder, report, group)
    for problem in problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))
    if json:
        print_json({"run": str(run), "folder": None if folder is None else str(folder), "model": model} | evaluation)
    else:
        _show(evaluation, noun_of(trained.dataset))


def _show(evaluation: dict[str, Any], noun: str) -> None:
    low, high = (percent(value) for value in evaluation["interval"])
    groups = f" of {evaluation['groups']:,} groups" if "groups" in evaluation else ""
    parts = (
        f"accuracy {percent(evaluation['accuracy'])} [{low}, {high}] on {evaluation['images']:,} {noun}{groups}",
        f"balanced {percent(evaluation['balanced_accuracy'])}",
        f"AUROC {_three(evaluation['auroc'])}",
        f"calibration error {percent(evaluation['ece'])}",
    )
    say(", ".join(parts))
    rows = [
        [row["class"], f"{row['images']:,}", percent(row["precision"]), percent(row["recall"])]
        for row in evaluation["classes"]
    ]
    print_table(("class", noun, "precision", "recall"), rows, "by class")
    names = [f"{i} {row['class']}" for i, row in enumerate(evaluation["classes"])]
    matrix = [
        [name, *(f"{count:,}" if count else "·" for count in counts)]
        for name, counts in zip(names, evaluation["confusion"], strict=True)
    ]
    columns = ("true class", *map(str, range(len(names))))
    print_table(columns, matrix, "confusion matrix, predicted class from left to right")
    if evaluation.get("sites"):
        _show_sites(evaluation["sites"], [row["class"] for row in evaluation["classes"]], noun)
    if (worst := evaluation.get("worst_clients")) is not None:
        sd, gini = 100 * evaluation["sd_clients"], evaluation["gini_clients"]
        say(f"clients: worst tenth {percent(worst)}, standard deviation {sd:.1f} points, Gini {gini:.3f}")


def _show_sites(sites: list[dict[str, Any]], classes: list[str], noun: str) -> None:
    rows = []
    for site in sites:
        ranked = sorted(zip(site.get("mix", []), classes, strict=False), reverse=True)
        mix = ", ".join(f"{name} {percent(share, 0)}" for share, name in ranked[:SHOWN] if share >= LEAST) or "–"
        rows.append([site["site"], mix, f"{site['images']:,}", percent(site.get("accuracy"))])
    names = ["site", "estimated class mix", noun, "accuracy"]
    if all(site.get("accuracy") is None for site in sites):  # real sites know no true classes
        names, rows = names[:-1], [row[:-1] for row in rows]
    print_table(names, rows, words=2)


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
