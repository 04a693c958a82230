"""C1: the worker of 30 % of the sampled clients is killed in every round, for 150 rounds: the run ends soundly.

    python -m benchmarks.reliability.crashes [ROUNDS]

prints {"rounds", "asked", "killed", "missing", "skipped", "finite", "seconds"}.
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.tiny_run import gone, tiny

from fedfew.config.parts import Parts, local_fleet
from fedfew.core.streams import numpy_stream
from fedfew.core.types import Fleet
from fedfew.runs.session import start
from fedfew.runtime.pool import PoolFleet
from fedfew.runtime.record import left_out

SHARE = 0.3


class Killer(threading.Thread):
    """Kills the worker of every client whose lot it is, once the worker has the job."""

    def __init__(self, pool: PoolFleet) -> None:
        super().__init__(daemon=True)
        self.pool, self.ended, self.seen, self.killed = pool, False, set[tuple[int, int]](), 0

    def run(self) -> None:
        while not self.ended:
            for worker in list(self.pool._workers):
                job = worker.job
                if job is None or job["kind"] != "train" or (job["round"], job["client"]) in self.seen:
                    continue
                self.seen.add((job["round"], job["client"]))
                if numpy_stream(0, "doom", job["round"], job["client"]).random() < SHARE:
                    worker.process.kill()
                    self.killed += 1
            time.sleep(0.0005)


def attack(base: Path, rounds: int) -> dict[str, Any]:
    killers: list[Killer] = []

    def doomed_fleet(parts: Parts) -> Fleet:
        fleet = local_fleet(parts)
        assert isinstance(fleet, PoolFleet)
        killers.append(Killer(fleet))
        killers[0].start()
        return fleet

    began = time.monotonic()
    settings: dict[str, Any] = {"participation": 0.5, "fleet__kind": "pool", "fleet__workers": 2, "client__epochs": 10}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedfew.runs.session.local_fleet", doomed_fleet)
        session = start(tiny(rounds=rounds, **settings), base / "run")
        records = list(session.advance())
    (killer,) = killers
    killer.ended = True
    killer.join()
    assert gone(killer.pool.processes)
    codes = {fault["code"] for record in records for fault in left_out(record)}
    assert codes <= {"E409"}, codes
    return {
        "rounds": len(records),
        "asked": sum(len(record["cohort"]) for record in records),
        "killed": killer.killed,
        "missing": sum(len(left_out(record)) for record in records),
        "skipped": sum(record["skipped"] for record in records),
        "finite": bool(torch.isfinite(session.state.omega).all()),
        "seconds": round(time.monotonic() - began),
    }


def main(words: list[str]) -> int:
    rounds = int(words[0]) if words else 150
    with tempfile.TemporaryDirectory() as folder:
        tally = attack(Path(folder), rounds)
    sys.stdout.write(json.dumps(tally) + "\n")
    return 0 if tally["rounds"] == rounds and tally["finite"] and tally["missing"] <= tally["killed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
