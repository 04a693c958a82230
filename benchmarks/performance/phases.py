"""Where a round's time goes: by phase from the records of a real run, and by operation inside one client.

python -m benchmarks.performance.phases [--workload cifar|mnist|both] [--images N] [--json]
                                        [--page docs/understand/performance.md]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.machine import median, peak, progress
from benchmarks.performance.page import RAW, finish, quiet_machine, with_output
from benchmarks.performance.workloads import WARM, WORKLOADS, Opened, Workload, cost, open_workload, prepare
from torch.profiler import ProfilerActivity, profile, record_function

from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite
from fedfew.runs.session import one_thread, start

RANGES = {"augment": "fedfew.data.samples.images.Images.views", "update": "fedfew.training.sgd._step"}
"""Functions whose operations are counted under the function's name, wherever else they occur."""
SERVER_EPOCHS = {"cifar": 1, "mnist": 5}
"""As in the preset paper-tuned; on digits, a short turn."""
BACKWARD = "autograd::engine::evaluate_function"
KINDS = ("forward convolutions", "backward convolutions", "other forward", "other backward", *RANGES, "outside torch")


def phases_of(opened: Opened, rounds: int) -> dict[str, float]:
    """Median seconds of every phase of a run on the pool; the first round, which starts workers, is left out."""
    records, laps, last = [], [], perf_counter()
    with tempfile.TemporaryDirectory(prefix="phases-") as folder:
        changes = {"rounds": rounds + 1, "server.epochs": SERVER_EPOCHS[opened.workload.name]}
        session = start(load(opened.config.document, changes), Path(folder) / "run")
        for record in session.advance():
            records.append(record["seconds"])
            laps.append(perf_counter() - last)
            last = perf_counter()
    measured = {phase: median([seconds[phase] for seconds in records[1:]]) for phase in records[0]}
    # the server trains σ of the next round before a record is yielded, so a lap includes one training like any other
    measured["round"] = median(laps[1:-1] or laps[1:])
    return measured


@contextmanager
def marked() -> Iterator[None]:
    """Mark the ranges for the profiler."""

    def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inside(*options: Any, **settings: Any) -> Any:
            with record_function(name):
                return function(*options, **settings)

        return inside

    with ExitStack() as stack:
        for name, path in RANGES.items():
            stack.enter_context(patch(path, named(name, resolve_name(path))))
        yield


def client_of(opened: Opened) -> dict[str, Any]:
    """Seconds by kind of operation in one client of one thread, and how fast its convolutions are."""
    with one_thread():
        parts = assemble(opened.config)
        state = replace(parts.algorithm.start(opened.omega), sigma=opened.sigma)
        payload, federation = parts.algorithm.broadcast(state, 0), parts.federation

        def train(client: int) -> Any:
            own = federation.samples.take(torch.from_numpy(federation.partition.of(client)))
            site = ClientSite(client, parts.network, own, len(federation.classes))
            return parts.algorithm.train_client(payload, site, stream(0, "phases", client))

        train(opened.warm[0])
        begun = perf_counter()
        train(0)
        plain = perf_counter() - begun
        with marked(), profile(activities=[ProfilerActivity.CPU]) as profiler:
            begun = perf_counter()
            trained = train(0)
            wall = perf_counter() - begun
    seconds = by_kind(profiler.events())
    seconds["outside torch"] = max(wall - sum(seconds.values()), 0.0)
    channels, size = federation.samples.data.shape[1:3]
    one, coverage = cost(parts.network.module, channels, size), trained.metrics["coverage"]
    flops = one.shared(opened.config.document["method"]["views"], coverage) * opened.workload.images
    convolved = seconds["forward convolutions"] + seconds["backward convolutions"]
    return {
        "seconds": {kind: seconds[kind] for kind in KINDS},
        "wall": wall,
        "wall_without_profiler": plain,
        "coverage": coverage,
        "gflops": flops / plain / 1e9,
        "gflops_in_convolutions": flops / convolved / 1e9,
    }


def by_kind(events: Any) -> dict[str, float]:
    """Seconds of each kind of operation itself, without the operations it called."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for event in events:
        seconds[kind_of(event)] += event.self_cpu_time_total / 1e6
    return seconds


def kind_of(event: Any) -> str:
    """An operation's kind, by its name and its caller."""
    names, parent = [event.name], event.cpu_parent
    while parent is not None:
        names.append(parent.name)
        parent = parent.cpu_parent
    for name in RANGES:
        if name in names:
            return name
    backward = any(name.startswith(BACKWARD) for name in names)
    convolution = any("convolution" in name.lower() or name.startswith("Winograd") for name in names)
    if convolution:
        return "backward convolutions" if backward else "forward convolutions"
    return "other backward" if backward else "other forward"


def measure(workload: Workload, rounds: int) -> dict[str, Any]:
    """Both views of one workload."""
    with tempfile.TemporaryDirectory(prefix="phases-") as folder:
        workload = prepare(workload, Path(folder))
        progress(f"{workload.name}: {rounds + 1} rounds of a real run, then one client under the profiler")
        phases = phases_of(open_workload(Path(folder), kind="pool"), rounds)
        client = client_of(open_workload(Path(folder)))
    about = {"data": workload.data, "clients": workload.clients + WARM, "images": workload.images}
    return about | {"width": workload.width, "phases": phases, "client": client}


def tell(name: str, measured: dict[str, Any], core: float) -> None:
    """Print the result."""
    phases, client = measured["phases"], measured["client"]
    progress(f"\n{name}: " + ", ".join(f"{phase} {seconds:.3f} s" for phase, seconds in phases.items()))
    total = sum(client["seconds"].values())
    progress("  one client: " + ", ".join(f"{kind} {s / total:.1%}" for kind, s in client["seconds"].items()))
    fast, overall = client["gflops_in_convolutions"], client["gflops"]
    progress(f"  {overall:.0f} GFLOP/s, in convolutions {fast:.0f}, one core's peak {core:.0f}")


def main() -> None:
    """Measure, print, and save the result if a page is to be written."""
    parser = with_output(argparse.ArgumentParser(description=__doc__, formatter_class=RAW))
    parser.add_argument("--workload", choices=[*WORKLOADS, "both"], default="both")
    parser.add_argument("--images", type=int, help="images of a client (cifar: 64; mnist: 245)")
    parser.add_argument("--width", type=int, help="width of the network, for a quick trial")
    options = parser.parse_args()
    progress("about 3 minutes if nothing else runs")
    begun, about = perf_counter(), quiet_machine(options)
    core, workloads = peak()["core"], {}
    for name in WORKLOADS if options.workload == "both" else [options.workload]:
        changes = {key: getattr(options, key) for key in ("images", "width") if getattr(options, key)}
        workloads[name] = measure(replace(WORKLOADS[name], **changes), 2 if name == "cifar" else 5)
        tell(name, workloads[name], core)
    minutes = round((perf_counter() - begun) / 60, 1)
    result = {"machine": about, "core_gflops": core, "workloads": workloads, "minutes": minutes}
    finish("phases", result, options)


if __name__ == "__main__":
    main()
