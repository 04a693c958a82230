"""fedfew predict, label-next and export: use a trained model."""

import csv as tables
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.text import percent, size
from fedfew.inference.export import export_model
from fedfew.inference.label_next import label_next as choose
from fedfew.inference.predict import Predictions, predict_files
from fedfew.interface.console import note, print_json, print_table, say, warn
from fedfew.interface.progress import counting
from fedfew.runs.folder import siblings
from fedfew.runs.run import Run
from fedfew.studies.bounds import Pairing

SHOWN = 40
"""Rows of the printed table; --csv and --json print all."""


def predict(
    run: Path,
    images: tuple[str, ...],
    confident: float,
    calibrate: bool,
    adapt_prior: bool,
    model: str,
    csv: bool,
    allow_code: Collection[str],
    json: bool,
) -> None:
    """Predict classes of images, rows or texts with the model of a run."""
    trained = Run.open(run, allow_code=allow_code).using(model)
    with counting("reading images") as report:
        predictions = predict_files(trained, images, calibrate=calibrate, adapt_prior=adapt_prior, report=report)
    for problem in predictions.problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))
    rows = predictions.rows(confident)
    if json:
        print_json(_result(run, predictions, rows))
    elif csv:
        _print_csv(predictions, rows)
    else:
        _show(predictions, rows, confident)


def _result(run: Path, predictions: Predictions, rows: list[dict[str, Any]]) -> dict[str, Any]:
    prior = None if predictions.prior is None else [round(share, 6) for share in predictions.prior.tolist()]
    return {
        "run": str(run),
        "classes": list(predictions.classes),
        "predictions": rows,
        "unreadable": [{"image": p.path, "reason": p.reason} for p in predictions.problems if p.skipped],
        "unsure": sum(row["sure"] is False for row in rows),
        "prior": None if prior is None else dict(zip(predictions.classes, prior, strict=True)),
        "temperature": predictions.temperature,
    }


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


def label_next(
    run: Path, images: tuple[str, ...], count: int, csv: bool, allow_code: Collection[str], json: bool
) -> None:
    """Choose the images, rows or texts to label next: uncertain ones, no two alike, each with the reason."""
    trained = Run.open(run, allow_code=allow_code)
    with counting("reading images") as report:
        rows, found = choose(trained, images, count, report)
    for problem in found.problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))
    if json:
        unreadable = [{"image": p.path, "reason": p.reason} for p in found.problems if p.skipped]
        print_json({"run": str(run), "considered": len(found.names), "chosen": rows, "unreadable": unreadable})
        return
    if csv:
        writer = tables.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    title = f"{len(rows)} of {len(found.names):,} {found.kind}s"
    print_table(("", found.kind, "reason"), [[str(r["rank"]), r[found.kind], r["reason"]] for r in rows], title, 3)


def export(run: Path, format: str, out: Path | None, model: str, allow_code: Collection[str], json: bool) -> None:
    trained = Run.open(run, allow_code=allow_code).using(model)
    done = export_model(trained, format, out, _server_only(trained))
    length = sum(file.stat().st_size for file in ([done.path] if done.path.is_file() else done.path.iterdir()))
    if json:
        agreement = {"logit_difference": done.agreement.difference, "classes_agree": done.agreement.classes}
        print_json({"path": str(done.path), "format": done.format, "bytes": length, "card": str(done.card)} | agreement)
        return
    note(f"compared with the model in torch: {done.agreement}")
    say(f"{done.path} ({size(length)})")
    say(f"model card: {done.card}")


def _server_only(run: Run) -> float | None:
    """The accuracy of the labels alone, if its finished pair is in the same folder."""
    others = (Run.open(path) for path in siblings(run.path))
    bound = Pairing(other for other in others if other.finished).of(run)
    return bound.accuracy() if run.method != bound.name and not bound.mismatch else None
