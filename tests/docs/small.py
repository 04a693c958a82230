"""Presets made small, so that a page's commands take a second each; whatever a page sets itself stays as it is."""

from pathlib import Path
from typing import Any

from fedfew.config import schema, tables

Table = dict[str, Any]


def smaller(table: Table) -> Table:
    """Two rounds at most, a few hundred images, a narrow network, small images for a backbone, one process."""
    built = table | {"rounds": min(table.get("rounds", 2), 2)}
    dataset = dict(table.get("dataset", {}))
    if dataset.get("name") == "mini-mnist":
        dataset |= {"unlabeled": 240, "test": 100, "validation": 50}
    elif dataset.get("name") == "mini-cifar":
        dataset |= {"unlabeled": 400, "test": 100}
    model = table.get("model", {})
    sections = {
        "dataset": dataset,
        "model": model | {"cnn": {"width": 4}, "efficientnet-lite0": {"size": 32}}.get(model.get("name", ""), {}),
        "method": table.get("method", {}) | ({"warmup": 2} if "warmup" in table.get("method", {}) else {}),
        "server": table.get("server", {}) | {"epochs": 1},
        "client": table.get("client", {}) | {"epochs": 1},
        "fleet": {"kind": "inline"},
    }
    return built | sections


def shrink(monkeypatch: Any) -> None:
    """From here on, presets and config files are read small; a run folder's run.toml is what it is."""

    def read(source: str | Path | Table, *more: Any) -> tuple[Table, str]:
        table, origin = tables.read(source, *more)
        as_it_is = isinstance(source, dict) or Path(origin).name == "run.toml"
        return (table, origin) if as_it_is else (smaller(table), origin)

    monkeypatch.setattr(schema, "read", read)
