"""Savings and costs of compressed uploads: bytes of an update and accuracy of each codec, against no compression.

    python benchmarks/compression.py [--methods fedavg,fedmix,fedfew] [--seeds 3] [--rounds 10] [--json]

Runs the preset ``quick`` (mini-mnist, 20 clients, Dirichlet 0.5; 100 labels, short turns) with each method, codec and
seed; all runs that are compared share split, start and cohorts. Writes benchmarks/results/compression.json. The bytes
are those the round loop counts; that Flower sends the same number is tested in tests/deploy/test_fleet.py.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedfew.core.environment import environment
from fedfew.runs.session import Experiment
from fedfew.runtime.record import left_out

KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "float16": {"compression.kind": "float16"},
    "int8": {"compression.kind": "int8"},
    "top-k 10 %": {"compression.kind": "top-k", "compression.share": 0.1},
    "top-k 10 %, no feedback": {"compression.kind": "top-k", "compression.share": 0.1, "compression.feedback": False},
    "ternary": {"compression.kind": "ternary"},
}
SHORT = {
    "labels": 100, "server.epochs": 5, "server.batch": 32, "server.augment": "none",
    "client.epochs": 1, "client.batch": 64,
}  # fmt: skip
"""Turns of server and clients, shorter than the preset's."""
LAST = 3
"""Rounds over which the accuracy is averaged."""
RESULTS = Path(__file__).resolve().parent / "results" / "compression.json"


def measure(method: str, changes: dict[str, Any], seed: int, rounds: int) -> tuple[float, float]:
    """Bytes of a client's update, and the accuracy of one run."""
    chosen = {"method.name": method, "seed": seed, "dataset.seed": seed, "rounds": rounds} | SHORT | changes
    with tempfile.TemporaryDirectory() as folder:
        records = Experiment.load("quick", chosen).run(Path(folder) / "run").rounds
    updates = sum(len(record["cohort"]) - len(left_out(record)) for record in records)
    accuracy = statistics.fmean(record["accuracy"] or 0.0 for record in records[-LAST:])
    return sum(record["bytes_up"] for record in records) / updates, accuracy


def table(methods: list[str], seeds: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each method and codec, with the difference to the same seeds without compression."""
    rows = []
    for method in methods:
        plain: list[float] = []
        for kind, changes in KINDS.items():
            result = [measure(method, changes, seed, rounds) for seed in range(seeds)]
            accuracies = [accuracy for _, accuracy in result]
            plain = plain or accuracies
            differences = [a - b for a, b in zip(accuracies, plain, strict=True)]
            row = {"method": method, "kind": kind, "bytes": result[0][0], "accuracies": accuracies}
            row |= {"mean": statistics.fmean(accuracies), "sd": _sd(accuracies)}
            row |= {"difference": statistics.fmean(differences), "difference_sd": _sd(differences)}
            rows.append(row)
            print(line(row, rows), file=sys.stderr, flush=True)
    return rows


def line(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """A row as Markdown."""
    plain = next(r for r in rows if r["method"] == row["method"])
    size = f"{row['bytes'] / 1000:.1f} kB | {plain['bytes'] / row['bytes']:.1f}×"
    gap = "" if row is plain else f"{100 * row['difference']:+.1f} ± {100 * row['difference_sd']:.1f}".replace("-", "−")
    return f"| {row['method']} | {row['kind']} | {size} | {100 * row['mean']:.1f} ± {100 * row['sd']:.1f} | {gap} |"


def _sd(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    """Print the table as Markdown, or the numbers as JSON."""
    parser = argparse.ArgumentParser(description="Bytes and accuracy of compressed uploads")
    parser.add_argument("--methods", default="fedavg,fedmix,fedfew")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = table(options.methods.split(","), options.seeds, options.rounds)
    report = {"seeds": options.seeds, "rounds": options.rounds, "rows": rows, "environment": environment()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print("| method | codec | an update | smaller | accuracy in % | difference |\n|---|---|---|---|---|---|")
    print("\n".join(line(row, rows) for row in rows))


if __name__ == "__main__":
    main()
