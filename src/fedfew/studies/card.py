"""A card for a table of results: Markdown for readers, with the configs and hashes by which others can run a row again.

The configs are JSON in the card itself: the keys that all runs share, and for each run the others.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedfew.config.tables import apply_overrides
from fedfew.core.errors import FedfewError
from fedfew.core.text import percent
from fedfew.runs.reading import Content
from fedfew.runs.run import Run
from fedfew.studies.compare import Comparison
from fedfew.studies.tables import as_markdown, escaped, texts

FENCE = re.compile(r"^```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
AGAIN = "Made by `fedfew card`. `fedfew rerun FILE --row N` runs a row again and compares the results."
VERSIONS = ("fedfew", "torch", "processor", "capability", "device")


class CardRun(Content):
    """A run of the table."""

    row: int
    settings: dict[str, Any]
    """The dotted keys in which it differs from the others."""
    accuracy: float | None
    model_sha256: str
    made_with: dict[str, Any]


class Card(Content):
    """The part of a card that a program reads."""

    shared: dict[str, Any]
    runs: list[CardRun]


def write_card(comparison: Comparison, runs: Sequence[Run]) -> str:
    """The card of a table whose runs have finished."""
    by_path = {str(run.path): run for run in runs}
    rows = [(number, by_path[path]) for number, row in enumerate(comparison.rows, 1) for path in row.runs]
    if unfinished := [run.name for _, run in rows if not run.finished]:
        raise FedfewError("E310", "card", f"not finished: {', '.join(unfinished)}", "Finish the runs")
    flats = [{k: v for k, v in run.flat.items() if not k.startswith("fleet.")} for _, run in rows]
    shared = {key: value for key, value in flats[0].items() if all(flat.get(key) == value for flat in flats)}
    card = Card(shared=shared, runs=[_run(*row, flat, shared) for row, flat in zip(rows, flats, strict=True)])
    table = [[str(number or "row"), *map(escaped, cells)] for number, cells in enumerate(texts(comparison))]
    hashes = [["row", "seeds", "accuracy", "model SHA-256", "made with"]]
    for own in card.runs:
        settings, made = shared | own.settings, ", ".join(f"{key} {value}" for key, value in own.made_with.items())
        seeds = f"{settings['seed']} / {settings['dataset.seed']}"
        hashes.append([str(own.row), seeds, percent(own.accuracy, 2), f"`{own.model_sha256[:16]}…`", made])
    parts = [
        AGAIN,
        "",
        as_markdown(table),
        *(f"- {escaped(note)}" for note in comparison.notes),
        "",
        as_markdown(hashes),
    ]
    return "\n".join([*parts, "```json", card.model_dump_json(indent=1), "```", ""])


def _run(number: int, run: Run, flat: Mapping[str, Any], shared: Mapping[str, Any]) -> CardRun:
    fingerprint = run.environment.get("fingerprint", {})
    return CardRun(
        row=number,
        settings={key: value for key, value in flat.items() if key not in shared},
        accuracy=run.accuracy(),
        model_sha256=run.summary["model_sha256"],
        made_with={key: fingerprint[key] for key in VERSIONS if key in fingerprint},
    )


def read_card(path: Path, row: int) -> list[tuple[CardRun, dict[str, Any]]]:
    """The runs of a row, each with its config; E309 for a file that is not a card."""
    try:
        fence = FENCE.search(path.read_text("utf-8"))
        card = Card.model_validate_json(fence[1] if fence else "")
    except (OSError, UnicodeDecodeError, ValidationError):
        raise FedfewError("E309", str(path), "is not a card that `fedfew card` wrote", "") from None
    runs = [run for run in card.runs if run.row == row]
    if not runs:
        last = max((run.row for run in card.runs), default=0)
        raise FedfewError("E103", "--row", f"there is no row {row}", f"Use 1 to {last}")
    return [(run, apply_overrides({}, {**card.shared, **run.settings})) for run in runs]
