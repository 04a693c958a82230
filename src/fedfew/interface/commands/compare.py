"""fedfew compare: compare runs with intervals over seeds, on the screen and as files for papers and pages."""

from pathlib import Path

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.interface.charts.printed import comparison as comparison_figure
from fedfew.interface.charts.printed import save
from fedfew.interface.console import note, print_json, print_table
from fedfew.runs.collection import open_runs
from fedfew.runs.summary import BY_EVALUATION, MEASURES, SPELLED
from fedfew.studies.compare import Comparison
from fedfew.studies.compare import compare as put_together
from fedfew.studies.tables import FORMATS, as_json, cells, columns, settings_text

FIGURES = (".png", ".svg", ".pdf")


def compare(
    runs: tuple[Path, ...], by: str, against: str, partial: bool, measure: str, files: tuple[Path, ...], json: bool
) -> None:
    """Mean ± 95 % interval over seeds, and the paired difference to server-only training or another method."""
    if measure not in (*MEASURES, *BY_EVALUATION):
        known = ", ".join((*MEASURES, *BY_EVALUATION))
        raise FedfewError("E103", "--metric", f"{measure!r} is unknown", f"Use one of: {known}")
    for file in files:
        if file.suffix not in (*FORMATS, *FIGURES):
            remedy = f"Give a name that ends in one of: {', '.join((*FORMATS, *FIGURES))}"
            raise FedfewError("E103", "--out", f"{file} has no known ending", remedy)
    keys = [key.strip() for key in by.split(",") if key.strip()]
    table = put_together(open_runs(runs), keys, against=against, partial=partial, which=measure)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in FIGURES:
            save(comparison_figure(table), file.with_suffix(""), (file.suffix[1:],))
        else:
            write_atomically(file, FORMATS[file.suffix](table))
    if json:
        print_json(as_json(table))
    else:
        _show(table)


def _show(comparison: Comparison) -> None:
    rows = []
    for row in comparison.rows:
        method, *numbers = cells(row, comparison.against)
        rows.append(["\n".join(filter(None, (method, settings_text(row)))), *numbers])
    print_table(columns(comparison), rows, f"{SPELLED[comparison.measure]} in %, mean ± 95 % interval over seeds")
    for text in comparison.notes:
        note(f"note: {text}")
    for path, why in comparison.left_out.items():
        note(f"left out: {path}: {why}")
