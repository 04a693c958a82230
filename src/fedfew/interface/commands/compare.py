"""fedfew compare: compare runs with intervals over seeds, as a table, CSV, LaTeX and figure."""

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.interface.charts.comparison import comparison
from fedfew.interface.charts.printed import save
from fedfew.interface.console import err, out, print_json
from fedfew.interface.report.words import size
from fedfew.runs.collection import open_runs
from fedfew.runs.summary import BY_EVALUATION, MEASURES, SPELLED
from fedfew.studies.bounds import METHOD
from fedfew.studies.compare import Comparison, Row
from fedfew.studies.compare import compare as put_together
from fedfew.studies.compare_tables import accuracy_text, as_json, difference_text, settings_line, to_csv, to_latex


def compare(
    runs: tuple[Path, ...],
    by: str,
    partial: bool,
    measure: str,
    csv: Path | None,
    latex: Path | None,
    figure: Path | None,
    json: bool,
) -> None:
    """Mean ± 95 % interval over seeds, and the paired difference to server-only training."""
    if measure not in (*MEASURES, *BY_EVALUATION):
        known = ", ".join((*MEASURES, *BY_EVALUATION))
        raise FedfewError("E103", "--metric", f"{measure!r} is unknown", f"Use one of: {known}")
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise FedfewError(
            "E103", "--figure", f"{figure} is not a PNG, SVG or PDF file", "Give a name that ends in .png"
        )
    keys = [key.strip() for key in by.split(",") if key.strip()]
    found = put_together(open_runs(runs), keys, partial=partial, which=measure)
    for path, content in ((csv, to_csv(found)), (latex, to_latex(found).encode())):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    if figure is not None:
        save(comparison(found), figure.with_suffix(""), (figure.suffix[1:],))
    if json:
        print_json(as_json(found))
    else:
        _show(found)


def _show(found: Comparison) -> None:
    table = Table(title=f"{SPELLED[found.measure]} in %, mean ± 95 % interval over seeds")
    table.add_column("method", overflow="fold")
    word = SPELLED[found.measure].partition(",")[0]
    for column in (word, "against server-only, paired", "seeds", "up per round", "down per round"):
        table.add_column(column, justify="right")
    for row in found.rows:
        traffic = (size(row.bytes_up), size(row.bytes_down))
        numbers = (accuracy_text(row.accuracy), difference_text(row), str(row.accuracy.n))
        table.add_row(escape(_name(row)), *numbers, *traffic)
    out.print(table)
    for note in found.notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    for path, why in found.left_out.items():
        err.print(f"left out: {path}: {why}", markup=False, soft_wrap=True)


def _name(row: Row) -> str:
    """A row's name: the method, then the settings that differ, or all of those in --by."""
    if METHOD not in row.key:
        return row.label
    return "\n".join(part for part in (row.shown[METHOD], settings_line(row)) if part)
