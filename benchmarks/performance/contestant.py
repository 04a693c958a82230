"""One contestant in its own process: reads a prepared workload, warms up, times rounds, prints one JSON line.

python -m benchmarks.performance.contestant pool|inline|inline-threads|torch|flower FOLDER --rounds N --cores N
"""

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.performance.workloads import open_workload

KINDS = ("pool", "inline", "inline-threads", "torch", "flower")


def compete(kind: str, folder: Path, rounds: int, cores: int) -> dict[str, Any]:
    """The timed rounds of one contestant."""
    if kind == "torch":
        from benchmarks.performance import peer_torch

        return peer_torch.contest(open_workload(folder), rounds)
    if kind == "flower":
        from benchmarks.performance import peer_flower

        return peer_flower.contest(open_workload(folder), folder, rounds, cores)
    from benchmarks.performance import peer_fedfew

    fleet = {"kind": "pool", "workers": cores} if kind == "pool" else {"kind": "inline"}
    return peer_fedfew.contest(open_workload(folder, **fleet), rounds, cores if kind == "inline-threads" else 1)


def main() -> None:
    """Print the result; ``start`` is the time from the start of this process to the end of the warm-up.

    The clock of perf_counter is the same in all processes of a machine.
    """
    begun = perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--since", type=float, default=begun, help="when this process was started, by perf_counter")
    options = parser.parse_args()
    result = compete(options.kind, options.folder, options.rounds, options.cores)
    result["start"] = result.pop("ready") - options.since
    print(json.dumps(result))


if __name__ == "__main__":
    main()
