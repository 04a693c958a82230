"""A worker that the system ends for lack of memory, in a cgroup of its own: the round goes on, the pool heals.

    python -m benchmarks.reliability.memory [ROUNDS]

prints {"rounds", "by", "starved", "killed", "missing", "codes", "skipped"}; "by" is "cgroup", or "kill" where
none can be made.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tiny_run import alive, eventually, tiny

from fedfew.config.parts import Parts, local_fleet
from fedfew.core.types import Fleet
from fedfew.runs.session import start
from fedfew.runtime.pool import PoolFleet
from fedfew.runtime.record import left_out

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LIMIT = str(1 << 20)


def starve(pid: int) -> str:
    """Leave a process hardly any memory beyond what it has: the next page it asks for ends it."""
    base, limit = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    group = base / f"fedfew-{os.getpid()}-{pid}"
    try:
        group.mkdir()
        (group / limit).write_text(LIMIT)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        os.kill(pid, signal.SIGKILL)
        return "kill"
    return "cgroup"


def attack(base: Path, rounds: int) -> dict[str, Any]:
    fleets: list[PoolFleet] = []

    def watched(parts: Parts) -> Fleet:
        fleet = local_fleet(parts)
        assert isinstance(fleet, PoolFleet)
        fleets.append(fleet)
        return fleet

    settings: dict[str, Any] = {"participation": 0.5, "fleet__kind": "pool", "fleet__workers": 2, "client__epochs": 5}
    victims: list[int] = []
    ways: set[str] = set()
    records = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedfew.runs.session.local_fleet", watched)
        for record in start(tiny(rounds=rounds, **settings), base / "run").advance():
            records.append(record)
            fresh = [pid for pid in fleets[0].processes if pid not in victims]
            if len(records) < rounds and fresh:
                victims.append(fresh[0])
                ways.add(starve(fresh[0]))
    killed = sum(eventually(lambda pid=pid: not alive(pid), 5) for pid in victims)  # type: ignore[misc]
    for group in (V1 if V1.is_dir() else V2).glob(f"fedfew-{os.getpid()}-*"):
        with contextlib.suppress(OSError):
            group.rmdir()
    missing = [fault["code"] for record in records for fault in left_out(record)]
    skipped = sum(record["skipped"] for record in records)
    result = {"rounds": len(records), "by": sorted(ways), "starved": len(victims), "killed": killed}
    return result | {"missing": len(missing), "codes": sorted(set(missing)), "skipped": skipped}


def main(options: list[str]) -> int:
    rounds = int(options[0]) if options else 10
    with tempfile.TemporaryDirectory() as folder:
        result = attack(Path(folder), rounds)
    sys.stdout.write(json.dumps(result) + "\n")
    good = result["rounds"] == rounds and result["killed"] >= rounds // 2 and set(result["codes"]) <= {"E409"}
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
