"""fedfew predict: what a trained model says about images, and which of them a person should look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfew.interface.options import Json

if TYPE_CHECKING:
    from fedfew.inference.predict import Predictions

SHOWN = 40
"""Rows of the table for people; --csv and --json have all."""


def register(app: typer.Typer) -> None:
    app.command("predict")(predict)


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES…", help="Image files, or folders of them.")],
    confident: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Mark images below this probability for a person.")
    ] = 0.0,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Correct over-confidence by the temperature found on held-out labels.")
    ] = False,
    adapt_prior: Annotated[
        bool, typer.Option("--adapt-prior", help="Estimate the mix of classes among these images and predict with it.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print a CSV table.")] = False,
    json: Json = False,
) -> None:
    """Predict classes of images with the model of a run."""
    from fedfew.core.errors import FedfewError
    from fedfew.inference.predict import predict_files
    from fedfew.interface.console import print_json, warn
    from fedfew.interface.reading import counting
    from fedfew.runs.run import Run

    trained = Run.open(run)
    with counting("reading images") as report:
        found = predict_files(trained, images, calibrate=calibrate, adapt_prior=adapt_prior, report=report)
    for problem in found.problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))
    rows = found.rows(confident)
    if json:
        print_json(_result(run, found, rows))
    elif csv:
        _print_csv(found, rows)
    else:
        _show(found, rows, confident)


def _result(run: Path, found: "Predictions", rows: list[dict[str, Any]]) -> dict[str, Any]:
    prior = None if found.prior is None else [round(share, 6) for share in found.prior.tolist()]
    return {
        "run": str(run),
        "classes": list(found.classes),
        "predictions": rows,
        "unreadable": [{"image": p.path, "reason": p.reason} for p in found.problems if p.skipped],
        "unsure": sum(not row["sure"] for row in rows),
        "prior": None if prior is None else dict(zip(found.classes, prior, strict=True)),
        "temperature": found.temperature,
    }


def _print_csv(found: "Predictions", rows: list[dict[str, Any]]) -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "label", "probability", "sure", *(f"p({name})" for name in found.classes)])
    for row in rows:
        sure = "yes" if row["sure"] else "no"
        writer.writerow([row["image"], row["label"], row["probability"], sure, *row["probabilities"].values()])


def _show(found: "Predictions", rows: list[dict[str, Any]], confident: float) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from fedfew.interface.console import out, percent

    table = Table(Column("image", overflow="fold"), "class", "probability", "")  # a path's end says which image
    for row in rows[:SHOWN]:
        mark = "" if row["sure"] else "look at it"
        table.add_row(escape(row["image"]), escape(row["label"]), percent(row["probability"]), mark)
    out.print(table)
    if len(rows) > SHOWN:
        out.print(f"… and {len(rows) - SHOWN:,} more; --csv prints all")
    if confident:
        unsure = sum(not row["sure"] for row in rows)
        out.print(f"{unsure:,} of {len(rows):,} images are below {percent(confident)}: for a person to look at")
    if found.prior is not None:
        ranked = sorted(zip(found.classes, found.prior.tolist(), strict=True), key=lambda pair: -pair[1])
        told = ", ".join(f"{name} {percent(share)}" for name, share in ranked[:10])
        out.print(f"estimated mix of classes: {told}", markup=False, soft_wrap=True)
