"""fedfew compare, card and rerun: a table of runs with intervals over seeds, as files, and a row of it run again."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedfew.config.names import own_code
from fedfew.config.schema import check
from fedfew.config.tables import apply_overrides
from fedfew.core.environment import fingerprint
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.core.text import percent
from fedfew.interface.charts.printed import comparison as comparison_figure
from fedfew.interface.charts.printed import save
from fedfew.interface.console import Answer, note, print_table, say
from fedfew.interface.progress import counting, follow
from fedfew.runs.collection import open_runs
from fedfew.runs.folder import free_folder
from fedfew.runs.run import Run
from fedfew.runs.session import start
from fedfew.runs.summary import BY_EVALUATION, MEASURES, SPELLED
from fedfew.studies.card import read_card, write_card
from fedfew.studies.compare import Comparison
from fedfew.studies.compare import compare as put_together
from fedfew.studies.tables import FORMATS, as_json, cells, columns, settings_text

FIGURES = (".png", ".svg", ".pdf")


def compare(
    runs: tuple[Path, ...], by: str, against: str, partial: bool, measure: str, files: tuple[Path, ...]
) -> Answer:
    """Mean ± 95 % interval over seeds, and the paired difference to server-only training or another method."""
    for file in files:
        if file.suffix not in (*FORMATS, *FIGURES):
            remedy = f"Give a name that ends in one of: {', '.join((*FORMATS, *FIGURES))}"
            raise FedfewError("E103", "--out", f"{file} has no known ending", remedy)
    table = _compared(open_runs(runs), by, against, measure, partial)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in FIGURES:
            save(comparison_figure(table), file.with_suffix(""), (file.suffix[1:],))
        else:
            write_atomically(file, FORMATS[file.suffix](table))
    return as_json(table), lambda: _show(table)


def _compared(runs: list[Run], by: str, against: str, measure: str, partial: bool = False) -> Comparison:
    if measure not in (*MEASURES, *BY_EVALUATION):
        known = ", ".join((*MEASURES, *BY_EVALUATION))
        raise FedfewError("E103", "--metric", f"{measure!r} is unknown", f"Use one of: {known}")
    keys = [key.strip() for key in by.split(",") if key.strip()]
    return put_together(runs, keys, against=against, partial=partial, which=measure)


def _show(comparison: Comparison, *lines: str) -> None:
    rows = []
    for row in comparison.rows:
        method, *numbers = cells(row, comparison.against)
        rows.append(["\n".join(filter(None, (method, settings_text(row)))), *numbers])
    print_table(columns(comparison), rows, f"{SPELLED[comparison.measure]} in %, mean ± 95 % interval over seeds")
    for text in comparison.notes:
        note(f"note: {text}")
    for path, why in comparison.left_out.items():
        note(f"left out: {path}: {why}")
    for line in lines:
        say(line)


def card(runs: tuple[Path, ...], by: str, against: str, measure: str, file: Path) -> Answer:
    """Write a table as a Markdown card with configs and hashes, so that others can run its rows again."""
    opened = open_runs(runs)
    table = _compared(opened, by, against, measure)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, write_card(table, opened).encode())
    return as_json(table) | {"card": str(file)}, lambda: _show(table, f"card: {file}")


def rerun(table: Path, row: int, overrides: dict[str, Any], out: Path | None, allow_code: Collection[str]) -> Answer:
    """Run a row of a card again, and compare the results with those of the card."""
    folder = out or free_folder(Path("runs") / f"rerun-{table.stem}-{row}")
    allowed = (*allow_code, *own_code(apply_overrides({}, overrides)).values())
    results, here = [], fingerprint()
    for number, (known, document) in enumerate(read_card(table, row), 1):
        config = check(apply_overrides(document, overrides), str(table), allowed)
        with counting("features of images") as report:
            session = start(config, folder / f"{config.method_name}-{number}".replace(":", "."), report=report)
        follow(session, f"{config.method_name}, seed {config.seed}")
        run = Run(session.folder)
        same = run.summary["model_sha256"] == known.model_sha256
        other = {key: value for key, value in known.made_with.items() if here.get(key, value) != value}
        told = f"seed {config.seed}: {percent(run.accuracy(), 2)}, the card says {percent(known.accuracy, 2)}; "
        told += "the same bits" if same else "other bits"
        told += f" (made with {', '.join(f'{key} {value}' for key, value in other.items())})" if other else ""
        result = {"run": str(run.path), "accuracy": run.accuracy(), "card": known.accuracy, "same": same}
        results.append(result | {"made_with": dict(other), "sentence": told})
    return {"row": row, "runs": results}, lambda: say("\n".join(result["sentence"] for result in results))
