"""The cost of a round besides training, as the number of clients grows: time and memory, each cell in its own process.

    python -m benchmarks.performance.scaling [--json] [--page docs/understand/performance.md] [--quick]

- K = 10², 10⁴, 10⁶ clients, ten of them a round, no local epochs: only the work around the training is left,
  and what a round writes to disk (its record and checkpoint), which is reported separately. Updates are not tried on
  the server's labels, which is a forward pass each; what that adds is one more cell.
- m = 10, 100, 1,000 clients a round of ResNet-9 of width 16 (1.6 MB a model), no local epochs: peak memory.
- workers 1 and 2 against inline: seconds of a round's clients with training.
"""

import argparse
import json
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.machine import median, own_peak, progress, run_watched
from benchmarks.performance.page import RAW, finish, quiet_machine, with_output

from fedfew.config.parts import cores

POPULATIONS = (100, 10_000, 1_000_000)
COHORTS = (10, 100, 1_000)
COHORT = 10
ROUNDS = 12
OVERHEAD_MS, EXTRA_MB, FLAT = 5.0, 200.0, 1.15
"""Targets: milliseconds per round, extra memory at 10⁶ clients over 10², and peak at m = 1,000 over peak at m = 10."""
Cell = dict[str, Any]


def cell(**changes: Any) -> Cell:
    """One configuration: the digits, virtual clients, FedMix."""
    return {
        "seed": 0,
        "rounds": ROUNDS,
        "clients": 100,
        "labels": 100,
        "participation": 0.1,
        "dataset.name": "mini-mnist",
        "dataset.validation": 0,
        "dataset.test": 20,
        "partition.kind": "virtual",
        "partition.per_client": 128,
        "model.name": "cnn",
        "method.name": "fedmix",
        "server.epochs": 0,
        "client.epochs": 0,
        "fleet.kind": "inline",
        "gate.images": 0,
    } | changes


def cells(quick: bool) -> list[Cell]:
    """All cells by family."""
    most = 1 if quick else 3
    measured = []
    for clients in POPULATIONS[:most]:
        few = cell(clients=clients, participation=COHORT / clients)
        measured.append({"family": "K", "config": few})
        measured.append({"family": "K", "config": few | {"fleet.kind": "pool", "fleet.workers": 2}})
    measured.append({"family": "screen", "config": few | {"gate.images": 200}})
    for cohort in COHORTS[:most]:
        big = {"model.name": "resnet9", "model.width": 4 if quick else 16, "rounds": 3, "fleet.kind": "pool"}
        every = cell(clients=cohort, participation=1.0, **big) | {"fleet.workers": 2}
        measured.append({"family": "m", "config": every})
    train = {"client.epochs": 1, "rounds": 3 if quick else 6}
    for workers in (0, 1, cores()):
        fleet = {"fleet.kind": "pool", "fleet.workers": workers} if workers else {"fleet.kind": "inline"}
        measured.append({"family": "workers", "config": cell(**train, **fleet)})
    return measured


def run(overrides: Cell) -> dict[str, Any]:
    """One run in this process, by the records of its rounds; the first round warms up and is left out."""
    from fedfew.config.schema import load
    from fedfew.runs.session import start

    table: dict[str, Any] = {}
    for path, value in overrides.items():
        section, _, key = path.rpartition(".")
        (table.setdefault(section, {}) if section else table)[key] = value
    begun = perf_counter()
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        session = start(load(table), Path(folder) / "run")
        ready = perf_counter() - begun
        laps, records, last = [], [], perf_counter()
        for record in session.advance():
            laps.append(perf_counter() - last)
            records.append(record)
            last = perf_counter()
    seconds = {phase: median([r["seconds"][phase] for r in records[1:]]) for phase in records[0]["seconds"]}
    loop = [sum(r["seconds"][phase] for phase in ("server", "clients", "aggregate")) for r in records]
    rest = [lap - one - r["seconds"]["evaluate"] for lap, one, r in zip(laps, loop, records, strict=True)]
    return {
        "ready": ready,
        "round": median(laps[1:]),
        "around": median(loop[1:]),
        "files": median(rest[1:]),
        "seconds": seconds,
        "cohort": len(records[-1]["cohort"]),
        "answered": len(records[-1]["updates"]),
        "peak_mb": own_peak() / 1e6,
    }


def measure(quick: bool) -> list[dict[str, Any]]:
    """Every cell in its own process, to measure its own peak memory."""
    measured, every = [], cells(quick)
    for number, one in enumerate(every, 1):
        config = one["config"]
        result, tree_peak = run_watched("benchmarks.performance.scaling", ["--cell", json.dumps(config)])
        workers = config.get("fleet.workers", 0) if config["fleet.kind"] == "pool" else 0
        row = {"family": one["family"], "K": config["clients"], "m": result["cohort"], "workers": workers}
        measured.append(row | result | {"tree_mb": tree_peak / 1e6})
        cost = f"{1e3 * result['around']:8.2f} ms, files {1e3 * result['files']:6.2f} ms, {result['peak_mb']:6.0f} MB"
        line = f"{row['family']:7} K = {row['K']:>9,} m = {row['m']:>5,} workers {workers}"
        progress(f"  {number}/{len(every)} {line}: {cost}")
    return measured


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Goals with the results; each is an upper bound."""
    measured = []
    populations = [row for row in rows if row["family"] == "K" and row["workers"] == 0]
    first, last = populations[0], populations[-1]
    growth = 1e3 * (last["around"] + last["files"] - first["around"] - first["files"])
    measured.append(_at_most("10⁶ clients: ms a round around the training", OVERHEAD_MS, 1e3 * last["around"]))
    measured.append(_at_most("10⁶ clients: ms a round more than with 10², files included", OVERHEAD_MS, growth))
    measured.append(_at_most("10⁶ clients: MB more than with 10²", EXTRA_MB, last["peak_mb"] - first["peak_mb"]))
    cohorts = [row for row in rows if row["family"] == "m"]
    most, least = cohorts[-1]["peak_mb"], cohorts[0]["peak_mb"]
    measured.append(_at_most("1,000 clients a round: the server's peak memory over that of 10", FLAT, most / least))
    return measured


def _at_most(what: str, goal: float, got: float) -> dict[str, Any]:
    return {"what": what, "goal": goal, "got": got, "met": got <= goal}


def main() -> None:
    """Measure, print, and save the result if a page is to be written."""
    parser = with_output(argparse.ArgumentParser(description=__doc__, formatter_class=RAW))
    parser.add_argument("--quick", action="store_true", help="the smallest cells only, to check that it works")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(run(json.loads(options.cell))))
        return
    progress("about 3 minutes if nothing else runs" if not options.quick else "about half a minute")
    begun, about = perf_counter(), quiet_machine(options)
    rows = measure(options.quick)
    minutes = round((perf_counter() - begun) / 60, 1)
    result = {"machine": about, "rows": rows, "targets": targets(rows), "minutes": minutes}
    for target in targets(rows):
        verdict = "met   " if target["met"] else "MISSED"
        progress(f"{verdict} {target['what']}: {target['got']:.2f} (at most {target['goal']:g})")
    finish("scaling", result, options)


if __name__ == "__main__":
    main()
