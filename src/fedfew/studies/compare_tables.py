"""A comparison as text, HTML, CSV, LaTeX with booktabs, and plain values for JSON."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from fedfew.runs.statistics import Interval
from fedfew.studies.bounds import BASELINE, METHOD

if TYPE_CHECKING:
    from fedfew.studies.compare import Comparison, Row

NOT_SIGNIFICANT = "not significant"


def as_json(found: "Comparison") -> dict[str, Any]:
    """Everything, for ``--json``."""
    rows = [
        asdict(row)
        | {"label": row.label, "significant": row.difference.significant if row.difference else None}
        for row in found.rows
    ]  # fmt: skip
    return {
        "by": list(found.by), "measure": found.measure, "rows": rows,
        "notes": list(found.notes), "left_out": found.left_out,
    }  # fmt: skip


def accuracy_text(value: Interval) -> str:
    """47.5 ± 1.2, where ± is half of the 95 % interval."""
    half = "" if value.high is None else f" ± {100 * (value.high - value.mean):.1f}"
    return f"{100 * value.mean:.1f}{half}"


def difference_text(row: "Row") -> str:
    """+3.1 [1.2, 5.0], and whether it is significant."""
    found = row.difference
    if row.key.get(METHOD) == BASELINE:
        return "–"
    if found is None:
        return "no pair"
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f} (one pair: no interval)"
    text = f"{100 * found.mean:+.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return text if found.significant else f"{text}, {NOT_SIGNIFICANT}"


def settings_line(row: "Row") -> str:
    """The settings in which rows differ, apart from the method, on one line."""
    return ", ".join(f"{key} {value}" for key, value in row.key.items() if key != METHOD and value is not None)


def to_csv(found: "Comparison") -> bytes:
    """One line per row, accuracies as fractions."""
    rows = as_rows(found)
    return as_csv(rows, list(rows[0]))


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _texts(found: "Comparison") -> list[list[str]]:
    """The cells as text, the column names first."""
    head = [*found.by, "seeds", "accuracy (%)", "against server-only (points)"]
    rows = [
        [*row.shown.values(), str(row.accuracy.n), accuracy_text(row.accuracy), difference_text(row)]
        for row in found.rows
    ]  # fmt: skip
    return [head, *rows]


def to_text(found: "Comparison") -> str:
    """Aligned columns, then the notes."""
    rows = _texts(found)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def to_html(found: "Comparison") -> str:
    """A table and the notes, for a notebook."""
    head, *rows = [[escape(cell) for cell in row] for row in _texts(found)]
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    return f"<table><tr>{top}</tr>{body}</table>" + (f"<ul>{notes}</ul>" if notes else "")


def as_rows(found: "Comparison") -> list[dict[str, Any]]:
    """One dict per row, accuracies as fractions."""
    rows = []
    for row in found.rows:
        gap = row.difference
        significant = {None: "", True: "yes", False: "no"}[gap.significant if gap else None]
        rows.append(
            {key: "" if value is None else value for key, value in row.key.items()}
            | {
                "seeds": row.accuracy.n, "mean": row.accuracy.mean, "sd": row.accuracy.sd,
                "low": row.accuracy.low, "high": row.accuracy.high,
                "difference": gap.mean if gap else None, "difference_low": gap.low if gap else None,
                "difference_high": gap.high if gap else None, "pairs": gap.n if gap else 0,
                "significant": significant, "bytes_up": row.bytes_up, "bytes_down": row.bytes_down,
                "rounds": row.rounds, "finished": not row.partial,
            }
        )  # fmt: skip
    return rows


def to_latex(found: "Comparison") -> str:
    """A table for ``\\usepackage{booktabs}``."""
    columns = [*found.by, "seeds", "accuracy (\\%)", "difference to server-only (points)", "MB up", "MB down"]
    align = "l" * len(found.by) + "rrlrr"
    lines = [f"\\begin{{tabular}}{{{align}}}", "\\toprule"]
    lines.append(" & ".join([*map(_escaped, columns[: len(found.by)]), *columns[len(found.by) :]]) + " \\\\")
    lines.append("\\midrule")
    for row in found.rows:
        cells = ["--" if text == "–" else _escaped(text) for text in row.shown.values()]
        numbers = [str(row.accuracy.n), _dashes(accuracy_text(row.accuracy)), _dashes(difference_text(row))]
        numbers += [f"{row.bytes_up / 1e6:.3g}", f"{row.bytes_down / 1e6:.3g}"]
        lines.append(" & ".join([*cells, *numbers]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"% {note}" for note in found.notes]
    return "\n".join(lines) + "\n"


def _dashes(text: str) -> str:
    return text.replace("±", "$\\pm$").replace("–", "--").replace("-", "$-$") if text != "–" else "--"


def _escaped(text: str) -> str:
    for character in "\\&%$#_{}~^":
        text = text.replace(character, {"\\": "\\textbackslash{}"}.get(character, f"\\{character}"))
    return text
