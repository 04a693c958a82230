"""fedfew data and partition: fetch datasets, partition them among clients, and measure how non-IID that is."""

from json import dumps
from pathlib import Path
from typing import Any

from fedfew.config.parts import federation_of
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.settings import settings_of
from fedfew.core.storage import write_atomically
from fedfew.data import PARTITIONS
from fedfew.data.npz import medmnist_files
from fedfew.data.rows.datasets import names_of
from fedfew.data.rows.encoder import Encoder
from fedfew.data.rows.files import read_rows
from fedfew.data.shares import heterogeneity
from fedfew.data.sources import fetch as bring
from fedfew.data.sources import inventory
from fedfew.interface.charts.printed import bubbles, save
from fedfew.interface.console import Answer, note, print_table, say
from fedfew.models.backbones.resnet50 import NAME as WEIGHTS
from fedfew.models.backbones.resnet50 import fetch as fetch_weights


def fetch(name: str, source: Path | None) -> Answer:
    """Fetch a dataset, or the weights of ResNet-50, from a local copy or from the first of its sources that answers."""
    path = fetch_weights(source, note) if name == WEIGHTS else bring(name, source, note)
    return {"name": name, "path": str(path)}, lambda: say(f"{name} is ready in {path}")


def sums(table: Path, columns: str, out: Path) -> Answer:
    """Write the counts, sums and sums of squares of a site's columns, for dataset.statistics = "sites"."""
    rows = read_rows(table)
    told = Encoder.told_by(rows, names_of(rows, columns, ("label", "site", "split")))
    write_atomically(out, dumps(told).encode())
    read = f"{out}: {len(rows):,} rows, columns {', '.join(told['columns'])}. Read it before you send it."
    return {"path": str(out), "columns": list(told["columns"]), "rows": len(rows)}, lambda: say(read)


def ls() -> Answer:
    entries = inventory()
    return {"datasets": [entry | {"path": str(entry["path"])} for entry in entries]}, lambda: _list(entries)


def _list(entries: list[dict[str, Any]]) -> None:
    rows = [
        [
            entry["name"],
            str(entry["path"]) if entry["fetched"] else f"fedfew data fetch {entry['name']}",
            f"{entry['images']:,}",
            "×".join(map(str, entry["shape"])),
            str(entry["classes"]),
        ]
        for entry in entries
    ]
    print_table(("dataset", "where, or how to get it", "images", "shape", "classes"), rows, words=2)
    sets = [name for name in medmnist_files() if "_" not in name]
    say(f"Also MedMNIST, 28, 64, 128 or 224 pixels a side, e.g. pathmnist_64: {', '.join(sets)}.")


def partition(
    dataset: str, mu: str, kind: str, clients: int, skew: float, out: Path, overrides: dict[str, Any]
) -> Answer:
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
    several = {key: {name: entry[key] for name, entry in partitions.items()} for key in ("sizes", "R", "hash")}
    result = next(iter(partitions.values())) if len(partitions) == 1 else {"clients": clients} | several
    return result, lambda: _show(partitions, dataset, kind, paths)


def _show(partitions: dict[str, dict[str, Any]], dataset: str, kind: str, paths: list[Path]) -> None:
    rows = []
    for name, entry in partitions.items():
        sizes = sorted(entry["sizes"])
        shown = (entry["clients"], sizes[0], sizes[len(sizes) // 2], sizes[-1], entry["hash"][:12])
        rows.append([name, f"{entry['R']:.3f}", *map(str, shown)])
    columns = ("μ", "R", "clients", "smallest", "median", "largest", "hash")
    print_table(columns, rows, f"{dataset}, {kind}", words=0)
    say("figure: " + ", ".join(map(str, paths)))
