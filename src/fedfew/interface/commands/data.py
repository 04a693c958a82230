"""fedfew data and partition: fetch datasets, partition them among clients, and measure how non-IID that is."""

from pathlib import Path
from typing import Any

from rich.table import Table

from fedfew.config.parts import federation_of
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.settings import settings_of
from fedfew.data import PARTITIONS
from fedfew.data.partitions import heterogeneity
from fedfew.data.sources import fetch as bring
from fedfew.data.sources import inventory
from fedfew.interface.charts.comparison import bubbles
from fedfew.interface.charts.printed import save
from fedfew.interface.console import err, out, print_json


def fetch(name: str, source: Path | None, json: bool) -> None:
    """Fetch a dataset from a local copy or from the first of its sources that answers."""
    path = bring(name, source, lambda line: err.print(line, markup=False, soft_wrap=True))
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        out.print(f"{name} is ready in {path}", soft_wrap=True)


def ls(json: bool) -> None:
    """List the datasets, fetched or not."""
    entries = inventory()
    if json:
        print_json(
            {
                "datasets": [
                    {
                        "name": entry.name,
                        "fetched": entry.fetched,
                        "images": entry.images,
                        "shape": list(entry.shape),
                        "classes": entry.classes,
                        "path": str(entry.path),
                    }
                    for entry in entries
                ]
            }
        )
        return
    table = Table("dataset", "here", "images", "shape", "classes", "where")
    for entry in entries:
        shape = "×".join(map(str, entry.shape))
        here = "yes" if entry.fetched else f"fedfew data fetch {entry.name}"
        table.add_row(entry.name, here, f"{entry.images:,}", shape, str(entry.classes), str(entry.path))
    out.print(table)


def partition(
    dataset: str, mu: str, kind: str, clients: int, skew: float, out: Path, overrides: dict[str, Any], json: bool
) -> None:
    """Print R (mean total variation between clients) and sizes, and draw Figure 3 as bubbles (PNG, SVG)."""
    known = settings_of(PARTITIONS[kind]) if kind in PARTITIONS else {}
    try:
        levels = [float(part) for part in mu.split(",")] if "mu" in known else [None]
    except ValueError:
        raise FedfewError("E103", "--mu", f"{mu!r} is not a list of numbers", "Write e.g. --mu 0.1,1,10") from None
    table: dict[str, Any] = {"clients": clients, "dataset": {"name": dataset}, "partition": {"kind": kind}}
    if skew or "skew" in known:
        table["partition"]["skew"] = skew
    if dataset == "cifar10":
        table["dataset"] |= {"split": "paper", "validation": 2000, "unlabeled": 55_000}
    else:
        table |= {"labels": 100}
        table["dataset"]["validation"] = 500
    partitions: dict[str, dict[str, Any]] = {}
    histograms, classes = {}, list[str]()
    for level in levels:
        chosen = {} if level is None else {"partition.mu": level}
        federation = federation_of(load(table, chosen | overrides))
        histogram = federation.partition.histogram(federation.truth.numpy(), len(federation.classes))
        name = kind if level is None else f"{level:g}"
        partitions[name] = {
            "clients": federation.partition.clients,
            "sizes": federation.partition.sizes.tolist(),
            "R": round(heterogeneity(histogram), 4),
            "hash": federation.partition.hash,
        }
        histograms[name if level is None else f"μ = {name}"], classes = histogram, list(federation.classes)
    paths = save(bubbles(histograms, classes), out / f"partition-{dataset}-{kind}")
    if json:
        several = {key: {name: entry[key] for name, entry in partitions.items()} for key in ("sizes", "R", "hash")}
        print_json(next(iter(partitions.values())) if len(partitions) == 1 else {"clients": clients} | several)
        return
    _show(partitions, dataset, kind, paths)


def _show(partitions: dict[str, dict[str, Any]], dataset: str, kind: str, paths: list[Path]) -> None:
    table = Table(title=f"{dataset}, {kind}")
    for column in ("μ", "R", "clients", "smallest", "median", "largest", "hash"):
        table.add_column(column, justify="right")
    for name, entry in partitions.items():
        sizes = sorted(entry["sizes"])
        table.add_row(
            name, f"{entry['R']:.3f}", str(entry["clients"]), str(sizes[0]), str(sizes[len(sizes) // 2]),
            str(sizes[-1]), entry["hash"][:12],
        )  # fmt: skip
    out.print(table)
    out.print("figure: " + ", ".join(map(str, paths)), soft_wrap=True)
