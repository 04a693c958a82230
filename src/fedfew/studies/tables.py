"""A comparison as text, HTML, CSV, LaTeX with booktabs, and plain values for JSON."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from fedfew.core.text import size
from fedfew.runs.statistics import Interval
from fedfew.runs.summary import SPELLED
from fedfew.studies.bounds import BASELINE, METHOD

if TYPE_CHECKING:
    from fedfew.studies.compare import Comparison, Row


def accuracy_text(value: Interval) -> str:
    """47.5 ± 1.2, where ± is half of the 95 % interval."""
    half = "" if value.high is None else f" ± {100 * (value.high - value.mean):.1f}"
    return f"{100 * value.mean:.1f}{half}"


def difference_text(row: "Row") -> str:
    """+3.1 [1.2, 5.0], and whether it is significant."""
    gap = row.difference
    if row.key.get(METHOD) == BASELINE:
        return "–"
    if gap is None:
        return "no pair"
    if gap.low is None or gap.high is None:
        return f"{100 * gap.mean:+.1f} (one pair: no interval)"
    text = f"{100 * gap.mean:+.1f} [{100 * gap.low:.1f}, {100 * gap.high:.1f}]"
    return text if gap.significant else f"{text}, not significant"


def settings_text(row: "Row") -> str:
    """The settings in which rows of a method differ; empty if rows are not grouped by method."""
    if METHOD not in row.key:
        return ""
    return ", ".join(f"{key} {value}" for key, value in row.key.items() if key != METHOD and value is not None)


def columns(comparison: "Comparison") -> list[str]:
    """The names of the columns that consoles, reports and notebooks show."""
    measure = SPELLED[comparison.measure].partition(",")[0]
    return ["method", f"{measure} in %", "against server-only, paired", "seeds", "up per round", "down per round"]


def cells(row: "Row") -> list[str]:
    """The text of these columns; the first is the row's label if the method is not among its keys."""
    numbers = [accuracy_text(row.accuracy), difference_text(row), str(row.accuracy.n)]
    return [marked(row, row.shown.get(METHOD, row.label)), *numbers, size(row.bytes_up), size(row.bytes_down)]


def marked(row: "Row", text: str) -> str:
    """The text with a star, if the row's settings are not as published; a note then tells which."""
    return f"{text}*" if row.unpublished else text


def _texts(comparison: "Comparison") -> list[list[str]]:
    """Column names and rows, with a column for the settings in which rows differ."""
    head, *tail = columns(comparison)
    rows = [[own[0], settings_text(row), *own[1:]] for row in comparison.rows for own in [cells(row)]]
    table = [[head, "settings", *tail], *rows]
    return table if any(row[1] for row in rows) else [[*row[:1], *row[2:]] for row in table]


def to_text(comparison: "Comparison") -> str:
    """Aligned columns, then the notes."""
    rows = _texts(comparison)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes)])


def to_html(comparison: "Comparison") -> str:
    """A table and the notes, for a notebook."""
    head, *rows = [[escape(cell) for cell in row] for row in _texts(comparison)]
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    return f"<table><tr>{top}</tr>{body}</table>" + (f"<ul>{notes}</ul>" if notes else "")


def as_json(comparison: "Comparison") -> dict[str, Any]:
    """Everything, for ``--json``."""
    rows = [
        asdict(row) | {"label": row.label, "significant": row.difference.significant if row.difference else None}
        for row in comparison.rows
    ]
    return asdict(comparison) | {"by": list(comparison.by), "rows": rows, "notes": list(comparison.notes)}


def as_rows(comparison: "Comparison") -> list[dict[str, Any]]:
    """One dict per row, accuracies as fractions."""
    rows = []
    for row in comparison.rows:
        own, gap = row.accuracy, row.difference
        numbers = {"seeds": own.n, "mean": own.mean, "sd": own.sd, "low": own.low, "high": own.high}
        against = {"difference": gap and gap.mean, "difference_low": gap and gap.low}
        against |= {"difference_high": gap and gap.high, "pairs": gap.n if gap else 0}
        about = {
            "not_as_published": row.unpublished,
            "significant": {None: "", True: "yes", False: "no"}[gap.significant if gap else None],
            "bytes_up": row.bytes_up, "bytes_down": row.bytes_down, "rounds": row.rounds, "finished": not row.partial,
        }  # fmt: skip
        rows.append({key: "" if value is None else value for key, value in row.key.items()} | numbers | against | about)
    return rows


def to_csv(comparison: "Comparison") -> bytes:
    """One line per row, accuracies as fractions."""
    rows = as_rows(comparison)
    return as_csv(rows, list(rows[0]))


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def to_latex(comparison: "Comparison") -> str:
    """A table for ``\\usepackage{booktabs}``."""
    by = [_escaped(key) for key in comparison.by]
    head = [*by, "seeds", "accuracy (\\%)", "difference to server-only (points)", "MB up", "MB down"]
    lines = [f"\\begin{{tabular}}{{{'l' * len(by)}rrlrr}}", "\\toprule", " & ".join(head) + " \\\\", "\\midrule"]
    for row in comparison.rows:
        keys = ["--" if text == "–" else _escaped(text) for text in row.shown.values()]
        keys[0] = marked(row, keys[0])
        numbers = [str(row.accuracy.n), _dashes(accuracy_text(row.accuracy)), _dashes(difference_text(row))]
        numbers += [f"{row.bytes_up / 1e6:.3g}", f"{row.bytes_down / 1e6:.3g}"]
        lines.append(" & ".join([*keys, *numbers]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in comparison.notes)]) + "\n"


def _dashes(text: str) -> str:
    return text.replace("±", "$\\pm$").replace("–", "--").replace("-", "$-$") if text != "–" else "--"


def _escaped(text: str) -> str:
    return re.sub(r"[&%$#_{}~^]", r"\\\g<0>", text.replace("\\", "\\textbackslash "))
