"""A comparison as text, HTML, Markdown, LaTeX with booktabs, CSV, Parquet, and plain values for JSON."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from fedfew.core.extras import import_optional
from fedfew.core.text import size
from fedfew.runs.intervals import Interval
from fedfew.runs.summary import SPELLED
from fedfew.studies.bounds import METHOD

if TYPE_CHECKING:
    from fedfew.studies.compare import Comparison, Row

DASH, LEAST_P = "–", 0.001


def accuracy_text(value: Interval) -> str:
    """47.5 ± 1.2, where ± is half of the 95 % interval; the values themselves where there is no interval."""
    if value.half is None:
        return ", ".join(f"{100 * each:.1f}" for each in value.values) or f"{100 * value.mean:.1f}"
    return f"{100 * value.mean:.1f} ± {100 * value.half:.1f}"


def points(gap: Interval) -> str:
    """+3.1 [+1.2, +5.0] in points; the values themselves where there is no interval."""
    if gap.low is None or gap.high is None:
        return ", ".join(f"{100 * each:+.1f}" for each in gap.values)
    return f"{100 * gap.mean:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def difference_text(row: "Row", against: str) -> str:
    """The difference in points; a dash for the reference itself."""
    if row.key.get(METHOD) == against:
        return DASH
    return "no pair" if row.difference is None else points(row.difference)


def p_text(p: float | None) -> str:
    """0.012, with a mark if that is no more than chance."""
    return DASH if p is None else f"<{LEAST_P}" if p < LEAST_P else f"{p:.2g}"


def settings_text(row: "Row") -> str:
    """The settings in which rows of a method differ; empty if rows are not grouped by method."""
    if METHOD not in row.key:
        return ""
    return ", ".join(f"{key} {value}" for key, value in row.key.items() if key != METHOD and value is not None)


def columns(comparison: "Comparison") -> list[str]:
    """The names of the columns that consoles, reports and notebooks show."""
    measure = SPELLED[comparison.measure].partition(",")[0]
    return ["method", f"{measure} in %", f"against {comparison.against}", "p", "seeds", "up / down a round"]


def cells(row: "Row", against: str) -> list[str]:
    """The text of these columns; the first is the row's label if the method is not among its keys."""
    title = marked(row, row.shown.get(METHOD, row.label))
    traffic = f"{size(row.bytes_up)} / {size(row.bytes_down)}" if row.bytes_up or row.bytes_down else DASH
    numbers = [accuracy_text(row.accuracy), difference_text(row, against), p_text(row.p), str(row.accuracy.n)]
    return [title, *numbers, traffic]


def marked(row: "Row", text: str) -> str:
    """The text with a star, if the row's settings are not as published; a note then tells which."""
    return f"{text}*" if row.unpublished else text


def texts(comparison: "Comparison") -> list[list[str]]:
    """Column names and rows, with a column for the settings in which rows differ."""
    head, *tail = columns(comparison)
    rows = [
        [own[0], settings_text(row), *own[1:]] for row in comparison.rows for own in [cells(row, comparison.against)]
    ]
    table = [[head, "settings", *tail], *rows]
    return table if any(row[1] for row in rows) else [[*row[:1], *row[2:]] for row in table]


def to_text(comparison: "Comparison") -> str:
    """Aligned columns, then the notes."""
    rows = texts(comparison)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes)])


def to_html(comparison: "Comparison") -> str:
    """A table and the notes, for a notebook."""
    head, *rows = [[escape(cell) for cell in row] for row in texts(comparison)]
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    return f"<table><tr>{top}</tr>{body}</table>" + (f"<ul>{notes}</ul>" if notes else "")


def to_markdown(comparison: "Comparison") -> str:
    """A table and the notes, to paste into a page."""
    table = as_markdown([[escaped(cell) for cell in row] for row in texts(comparison)])
    return "\n".join([table, *(f"- {escaped(note)}" for note in comparison.notes)]) + "\n"


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of them the header."""
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return "\n".join([*lines, ""])


def escaped(text: str) -> str:
    """Text for Markdown."""
    return re.sub(r"[|*_<]", r"\\\g<0>", text)


def to_latex(comparison: "Comparison") -> str:
    """A table for ``\\usepackage{booktabs}``."""
    head, *rows = [[_latex(cell) for cell in row] for row in texts(comparison)]
    lines = [
        f"\\begin{{tabular}}{{{'l' * (len(head) - 5)}rrrrr}}",
        "\\toprule",
        " & ".join(head) + " \\\\",
        "\\midrule",
    ]
    lines += [" & ".join(row) + " \\\\" for row in rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in comparison.notes)]) + "\n"


def _latex(text: str) -> str:
    text = re.sub(r"[&%$#_{}~^]", r"\\\g<0>", text.replace("\\", "\\textbackslash "))
    if text == DASH:
        return "--"
    return re.sub(r"(?<![\w.])[-+<](?=[\d.])", r"$\g<0>$", text.replace("±", "$\\pm$")).replace(DASH, "--")


def as_json(comparison: "Comparison") -> dict[str, Any]:
    """Everything, for ``--json``."""
    rows = [asdict(row) | {"label": row.label, "significant": row.significant} for row in comparison.rows]
    return asdict(comparison) | {"by": list(comparison.by), "rows": rows, "notes": list(comparison.notes)}


def as_rows(comparison: "Comparison") -> list[dict[str, Any]]:
    """One dict per row, accuracies as fractions."""
    rows = []
    for row in comparison.rows:
        own, gap = row.accuracy, row.difference
        numbers = {"seeds": own.n, "mean": own.mean, "sd": own.sd, "low": own.low, "high": own.high}
        against = {"difference": gap and gap.mean, "difference_low": gap and gap.low}
        against |= {"difference_high": gap and gap.high, "pairs": gap.n if gap else 0, "p": gap and gap.p}
        about = {
            "p_holm": row.p,
            "significant": {None: "", True: "yes", False: "no"}[row.significant],
            "not_as_published": row.unpublished, "tuned": row.tuned,
            "bytes_up": row.bytes_up, "bytes_down": row.bytes_down, "rounds": row.rounds, "finished": not row.partial,
        }  # fmt: skip
        rows.append({key: "" if value is None else value for key, value in row.key.items()} | numbers | against | about)
    return rows


def to_csv(comparison: "Comparison") -> bytes:
    """One line per row, accuracies as fractions."""
    rows = as_rows(comparison)
    return as_csv(rows, list(rows[0]))


def to_parquet(comparison: "Comparison") -> bytes:
    """The same columns as Parquet; settings are text."""
    parquet = import_optional("pyarrow.parquet", "fedfew[data]", "a Parquet table")
    arrow, file = import_optional("pyarrow", "fedfew[data]", "a Parquet table"), io.BytesIO()
    rows = [row | {key: str(row[key]) for key in comparison.by} for row in as_rows(comparison)]
    parquet.write_table(arrow.Table.from_pylist(rows), file)
    return file.getvalue()


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


FORMATS = {
    ".csv": to_csv,
    ".parquet": to_parquet,
    ".md": lambda comparison: to_markdown(comparison).encode(),
    ".tex": lambda comparison: to_latex(comparison).encode(),
}
"""How a table is written, by the ending of its file."""
