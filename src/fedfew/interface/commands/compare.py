"""fedfew compare: compare runs with intervals over seeds, as a table, CSV, LaTeX and figure."""

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
from fedfew.studies.tables import as_json, cells, columns, settings_text, to_csv, to_latex


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
    table = put_together(open_runs(runs), keys, partial=partial, which=measure)
    for path, content in ((csv, to_csv(table)), (latex, to_latex(table).encode())):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    if figure is not None:
        save(comparison_figure(table), figure.with_suffix(""), (figure.suffix[1:],))
    if json:
        print_json(as_json(table))
    else:
        _show(table)


def _show(comparison: Comparison) -> None:
    rows = []
    for row in comparison.rows:
        method, *numbers = cells(row)
        rows.append(["\n".join(filter(None, (method, settings_text(row)))), *numbers])
    title = f"{SPELLED[comparison.measure]} in %, mean ± 95 % interval over seeds"
    print_table(columns(comparison), rows, title)
    for text in comparison.notes:
        note(f"note: {text}")
    for path, why in comparison.left_out.items():
        note(f"left out: {path}: {why}")
