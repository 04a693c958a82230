"""fedfew evaluate, predict, label-next and export: how good a trained model is, and its use."""

import csv as tables
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.text import percent, size
from fedfew.data import noun_of
from fedfew.data.dataset import Problem
from fedfew.inference.evaluate import evaluate_files, evaluate_run, evaluate_unlabeled
from fedfew.inference.export import export_model
from fedfew.inference.label_next import label_next as choose
from fedfew.inference.predict import Predictions, predict_files
from fedfew.inference.unlike import Unlike
from fedfew.interface.console import Answer, note, print_table, say, warn_unreadable
from fedfew.interface.progress import counting
from fedfew.runs.folder import siblings
from fedfew.runs.run import Run
from fedfew.studies.bounds import Pairing

SHOWN = 40
"""Rows of the printed table; --csv and --json print all."""
SITE_CLASSES, LEAST = 5, 0.01
"""Classes shown of a site's mix: at most this many, each with at least this share."""


def predict(
    run: Path,
    images: tuple[str, ...],
    confident: float,
    calibrate: bool,
    adapt_prior: bool,
    model: str,
    csv: bool,
    allow_code: Collection[str],
) -> Answer:
    """Predict classes of images, rows or texts with the model of a run."""
    trained = Run.open(run, allow_code=allow_code).using(model)
    with counting("reading images") as report:
        predictions = predict_files(trained, images, calibrate=calibrate, adapt_prior=adapt_prior, report=report)
    warn_unreadable(predictions.problems)
    rows = predictions.rows(confident)
    prior = None if predictions.prior is None else [round(share, 6) for share in predictions.prior.tolist()]
    result = {
        "run": str(run),
        "classes": list(predictions.classes),
        "predictions": rows,
        "unreadable": [{"image": p.path, "reason": p.reason} for p in predictions.problems if p.skipped],
        "unsure": sum(row["sure"] is False for row in rows),
        "prior": None if prior is None else dict(zip(predictions.classes, prior, strict=True)),
        "temperature": predictions.temperature,
    }
    return result, lambda: _print_csv(predictions, rows) if csv else _show(predictions, rows, confident)


def _print_csv(predictions: Predictions, rows: list[dict[str, Any]]) -> None:
    writer = tables.writer(sys.stdout, lineterminator="\n")
    writer.writerow([predictions.kind, "label", "probability", "sure", *(f"p({name})" for name in predictions.classes)])
    for row in rows:
        sure = {None: "", True: "yes", False: "no"}[row["sure"]]
        writer.writerow([row[predictions.kind], row["label"], row["probability"], sure, *row["probabilities"].values()])


def _show(predictions: Predictions, rows: list[dict[str, Any]], confident: float) -> None:
    texts = [
        [row[predictions.kind], row["label"], "check it" if row["sure"] is False else "", percent(row["probability"])]
        for row in rows[:SHOWN]
    ]
    print_table((predictions.kind, "class", "", "probability"), texts, words=3)
    if len(rows) > SHOWN:
        say(f"… and {len(rows) - SHOWN:,} more; --csv prints all")
    if confident:
        unsure = sum(not row["sure"] for row in rows)
        say(f"{unsure:,} of {len(rows):,} {predictions.kind}s are below {percent(confident)}: for a person to check")
    if predictions.prior is not None:
        ranked = sorted(zip(predictions.classes, predictions.prior.tolist(), strict=True), key=lambda pair: -pair[1])
        mix = ", ".join(f"{name} {percent(share)}" for name, share in ranked[:10])
        say(f"estimated mix of classes: {mix}")


def label_next(run: Path, images: tuple[str, ...], count: int, csv: bool, allow_code: Collection[str]) -> Answer:
    """Choose the images, rows or texts to label next: uncertain ones, no two alike, each with the reason."""
    trained = Run.open(run, allow_code=allow_code)
    with counting("reading images") as report:
        rows, candidates, unlike = choose(trained, images, count, report)
    warn_unreadable(candidates.problems)

    def show() -> None:
        if csv:
            writer = tables.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return
        title = f"{len(rows)} of {len(candidates.names):,} {candidates.kind}s"
        print_table(
            ("", candidates.kind, "reason"), [[str(r["rank"]), r[candidates.kind], r["reason"]] for r in rows], title, 3
        )
        say_unlike(unlike, f"{candidates.kind}s")

    unreadable = [{"image": p.path, "reason": p.reason} for p in candidates.problems if p.skipped]
    about = {"run": str(run), "considered": len(candidates.names), "chosen": rows, "unreadable": unreadable}
    return about | {"unlike": None if unlike is None else unlike.about()}, show


def say_unlike(unlike: Unlike | None, noun: str) -> None:
    """How many look like none of the classes."""
    learned = "whether some are of none of your classes is not known: it takes a frozen backbone, and the run's labels"
    say(learned if unlike is None else unlike.sentence(noun))


def export(run: Path, format: str, out: Path | None, model: str, allow_code: Collection[str]) -> Answer:
    trained = Run.open(run, allow_code=allow_code).using(model)
    done = export_model(trained, format, out, _server_only(trained))
    length = sum(file.stat().st_size for file in ([done.path] if done.path.is_file() else done.path.iterdir()))
    note(f"compared with the model in torch: {done.agreement}")
    agreement = {"logit_difference": done.agreement.difference, "classes_agree": done.agreement.classes}
    about = {"path": str(done.path), "format": done.format, "bytes": length, "card": str(done.card)}
    return about | agreement, lambda: say(f"{done.path} ({size(length)})\nmodel card: {done.card}")


def _server_only(run: Run) -> float | None:
    """The accuracy of the labels alone, if its finished pair is in the same folder."""
    others = (Run.open(path) for path in siblings(run.path))
    bound = Pairing(other for other in others if other.finished).of(run)
    return bound.accuracy() if run.method != bound.name and not bound.mismatch else None


def evaluate(
    run: Path, folder: Path | None, unlabeled: bool, group: str, sites: bool, model: str, allow_code: Collection[str]
) -> Answer:
    """Evaluate a model: confusion matrix, precision and recall by class, AUROC, calibration, sites."""
    trained = Run.open(run, allow_code=allow_code).using(model)
    problems: list[Problem] = []
    if unlabeled:
        return _without_labels(trained, folder)
    if folder is None:
        evaluation = evaluate_run(trained, sites=sites)
    else:
        with counting("reading images") as report:
            evaluation, problems = evaluate_files(trained, folder, report, group)
    warn_unreadable(problems)
    about = {"run": str(run), "folder": None if folder is None else str(folder), "model": model}
    return about | evaluation, lambda: _show_evaluation(evaluation, noun_of(trained.dataset))


def _without_labels(run: Run, folder: Path | None) -> Answer:
    if folder is None:
        raise FedfewError("E103", "--unlabeled", "needs a PATH", "Give the folder or table without labels")
    with counting("reading images") as report:
        result, unlike, problems = evaluate_unlabeled(run, folder, report)
    warn_unreadable(problems)
    noun = noun_of(run.dataset)

    def show() -> None:
        ranked = sorted(result["mix"].items(), key=lambda pair: -pair[1])
        mix = ", ".join(f"{name} {percent(share, 0)}" for name, share in ranked if share >= LEAST)
        say(f"{result['images']:,} {noun} without labels; predicted mix of classes: {mix}")
        say_unlike(unlike, noun)

    return {"run": str(run.path), "folder": str(folder)} | result, show


def _show_evaluation(evaluation: dict[str, Any], noun: str) -> None:
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
        mix = ", ".join(f"{name} {percent(share, 0)}" for share, name in ranked[:SITE_CLASSES] if share >= LEAST) or "–"
        rows.append([site["site"], mix, f"{site['images']:,}", percent(site.get("accuracy"))])
    names = ["site", "estimated class mix", noun, "accuracy"]
    if all(site.get("accuracy") is None for site in sites):  # real sites know no true classes
        names, rows = names[:-1], [row[:-1] for row in rows]
    print_table(names, rows, words=2)


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
