"""Compares fedfew with common practice: the same FedMix rounds by fedfew, plain PyTorch and Flower's simulation.

    python -m benchmarks.performance.peers [--workload cifar|mnist|both] [--images N] [--rounds N] [--repeat N]
                                           [--only a,b] [--json] [--page docs/understand/performance.md]

Contestants take turns, each in its own process: pool (a process for each core), inline (one thread, as fedfew
always does for equal bits), inline-threads (what all threads would give), torch (plain PyTorch), flower (the same
clients on Ray actors, needs the extra ``bench``). The floor is shown too: the counted FLOP of fedfew's round at
the peak measured in the same run. A round is everything between the server's training and the scoring: send, train the
clients, collect, aggregate. Start-up is reported separately.
"""

import argparse
import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.machine import busy, median, peak, progress, run_watched
from benchmarks.performance.contestant import KINDS
from benchmarks.performance.page import RAW, finish, quiet_machine, with_output
from benchmarks.performance.peers_table import model_name, rows, targets
from benchmarks.performance.workloads import WORKLOADS, Cost, Workload, cost, open_workload, prepare

from fedfew.config.parts import assemble, cores

ROUNDS = {"cifar": 1, "mnist": 5}
REPEAT = {"cifar": 2, "mnist": 2}
STARTS = {"pool": 5.0, "inline": 3.0, "inline-threads": 3.0, "torch": 4.0, "flower": 14.0}
"""Seconds until a contestant is ready, for the estimate only."""
EFFICIENCY = {"cifar": 0.6, "mnist": 0.15}
"""Share of the peak that contestants may reach, for the estimate only."""


def available() -> list[str]:
    """The contestants that can run here: Flower's engine is an extra."""
    lacking = [package for package in ("flwr", "ray") if importlib.util.find_spec(package) is None]
    return [kind for kind in KINDS if kind != "flower" or not lacking]


def counted(folder: Path) -> tuple[Cost, int]:
    """FLOP for one image, and the number of views."""
    config = open_workload(folder).config
    parts = assemble(config)
    channels, size = parts.federation.samples.data.shape[1:3]
    return cost(parts.network.module, channels, size), config.document["method"]["views"]


def estimate(workload: Workload, kinds: list[str], rounds: int, repeat: int, cost: Cost, gflops: float) -> float:
    """Seconds that a workload will take, roughly."""
    seconds = 0.0
    for kind in kinds:
        flops = cost.naive(5) if kind in ("torch", "flower") else cost.shared(5, 0.5)
        share = 1 / cores() if kind == "inline" else 1.0
        images = workload.total * rounds * (1.8 if kind == "pool" else 1.0) + workload.warm * 2
        seconds += images * flops / (gflops * 1e9 * EFFICIENCY[workload.name] * share) + STARTS[kind]
    return seconds * repeat


def measure(workload: Workload, kinds: list[str], rounds: int, repeat: int) -> dict[str, Any]:
    """All contestants in turn, ``repeat`` times."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        workload = prepare(workload, folder)
        one, views = counted(folder)
        peaks, others = [peak()], [0.0]
        expected = estimate(workload, kinds, rounds, repeat, one, peaks[0]["best"])
        progress(f"{workload.name}: {workload.clients} clients × {workload.images} images ({workload.data})")
        progress(f"{workload.name}: about {expected / 60:.1f} minutes if nothing else runs")
        measured: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for turn in range(repeat):
            for kind in kinds:
                since = perf_counter()
                arguments = [kind, str(folder), "--rounds", str(rounds), "--cores", str(cores())]
                result, memory = run_watched("benchmarks.performance.contestant", [*arguments, "--since", str(since)])
                measured[kind].append(result | {"memory": memory})
                seconds = ", ".join(f"{s:.2f}" for s in result["rounds"])
                progress(f"  {turn + 1}/{repeat} {kind:15} {seconds} s a round, start {result['start']:.1f} s")
            peaks.append(peak())
            others.append(busy())
    best = max(peaks, key=lambda one: one["best"])
    return summary(workload, measured, one, views, best) | {"busy_between": round(max(others), 3)}


def summary(
    workload: Workload, measured: dict[str, list[dict[str, Any]]], one: Cost, views: int, best: dict[str, float]
) -> dict[str, Any]:
    """Medians over all timed rounds, and the arithmetic speed they mean."""
    contestants = {}
    for kind, turns in measured.items():
        coverage = sum(turn["coverage"] for turn in turns) / len(turns)
        flops = one.naive(views) if kind in ("torch", "flower") else one.shared(views, coverage)
        seconds = [s for turn in turns for s in turn["rounds"]]
        contestants[kind] = {
            "seconds": median(seconds),
            "all": [round(s, 4) for s in seconds],
            "even": median([s for turn in turns for s in turn["even"]]) if "even" in turns[0] else None,
            "start": median([turn["start"] for turn in turns]),
            "memory_mb": max(turn["memory"] for turn in turns) / 1e6,
            "coverage": coverage,
            "threads": turns[0]["threads"],
            "equivalents": one.equivalents(flops),
            "gflops": flops * workload.total / median(seconds) / 1e9,
            "share_of_peak": flops * workload.total / median(seconds) / 1e9 / best["best"],
        }
    ours = contestants.get("pool") or contestants.get("inline")
    floor = one.shared(views, ours["coverage"]) * workload.total / best["best"] / 1e9 if ours else None
    return {
        "data": workload.data,
        "model": model_name(workload.name, workload.width),
        "clients": workload.clients,
        "even_clients": workload.clients - workload.clients % 2,
        "images": workload.images,
        "forward_mflop": one.forward / 1e6,
        "peak_gflops": best,
        "floor_seconds": floor,
        "contestants": contestants,
    }


def tell(result: dict[str, Any]) -> None:
    """Print the tables and targets."""
    for name, measured in result["workloads"].items():
        size = f"{measured['clients']} clients × {measured['images']} images"
        progress(f"\n{name}: {measured['model']}, {size}, {measured['data']}")
        for row in rows(measured):
            progress("  " + " | ".join(f"{cell:>18}" for cell in row))
    for target in result["targets"]:
        verdict = "met   " if target["met"] else "MISSED"
        progress(f"{verdict} {target['what']}: {target['got']:.2f} (at least {target['goal']:g})")


def main() -> None:
    """Measure, print, and save the result if a page is to be written."""
    parser = with_output(argparse.ArgumentParser(description=__doc__, formatter_class=RAW))
    parser.add_argument("--workload", choices=[*WORKLOADS, "both"], default="both")
    parser.add_argument("--images", type=int, help="images of a client (cifar: 64; mnist: 245)")
    parser.add_argument("--width", type=int, help="width of the network, for a quick trial")
    parser.add_argument("--rounds", type=int, help="timed rounds of each turn (cifar: 1, mnist: 5)")
    parser.add_argument("--repeat", type=int, help="turns of each contestant (2)")
    parser.add_argument("--only", default="", help="contestants, separated by commas; all if empty")
    options = parser.parse_args()
    kinds = [kind for kind in available() if not options.only or kind in options.only.split(",")]
    for kind in set(KINDS) - set(available()):
        progress(f"{kind} is left out: install it with pip install --group bench")
    begun, workloads, about = perf_counter(), {}, quiet_machine(options)
    for name in WORKLOADS if options.workload == "both" else [options.workload]:
        changes = {key: getattr(options, key) for key in ("images", "width") if getattr(options, key)}
        rounds, repeat = options.rounds or ROUNDS[name], options.repeat or REPEAT[name]
        workloads[name] = measure(replace(WORKLOADS[name], **changes), kinds, rounds, repeat)
    about["busy_after"] = max(measured["busy_between"] for measured in workloads.values())
    minutes = round((perf_counter() - begun) / 60, 1)
    result = {"machine": about, "workloads": workloads, "targets": targets(workloads), "minutes": minutes}
    tell(result)
    finish("peers", result, options)


if __name__ == "__main__":
    main()
