"""Thousands of rounds in one process, and a thousand sites in one round: memory and files must not grow with them.

    python -m benchmarks.reliability.soak rounds [ROUNDS]
    python -m benchmarks.reliability.soak sites [SITES]

prints {"rounds", "memory_mb", "drift_percent", "checkpoint_bytes", "bytes_a_round"}, or {"sites", "answered",
"grew_mb"} for the second. Memory and checkpoints are compared between the first tenth of the rounds and the end.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.runs.crashes import files_of
from tests.runtime.tiny_run import tiny

from fedfew.runs.session import start
from fedfew.runtime.record import left_out

SMALL: dict[str, Any] = {
    "clients": 12, "participation": 0.1, "labels": 10, "model__width": 1, "method__views": 2, "server__epochs": 1,
    "dataset__test": 10, "dataset__validation": 10, "dataset__unlabeled": 24, "evaluate__clients": False,
}  # fmt: skip
A_ROUND = 20
"""Bytes by which two checkpoints may grow with a round: each keeps the validation scores so far."""


def megabytes() -> float:
    """The memory this process has now."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def size(folder: Path) -> int:
    """The bytes of the checkpoints, the journal left out, which has a line for each round."""
    return sum(path.stat().st_size for path in files_of(folder / "checkpoints") if path.name != "rounds.jsonl")


def rounds(folder: Path, count: int) -> tuple[dict[str, Any], bool]:
    session = start(tiny(rounds=count, **SMALL), folder)
    early = late = (0.0, 0)
    began, done = time.monotonic(), 0
    for record in session.advance():
        done = record["round"]
        if done == count // 10:
            early = megabytes(), size(folder)
        late = megabytes(), size(folder)  # before the summary is made, which reads all rounds again
        if done % 500 == 0:
            sys.stderr.write(f"round {done}: {megabytes():.0f} MB\n")
    drift = 100 * (late[0] / early[0] - 1)
    result = {
        "rounds": done,
        "memory_mb": [round(early[0], 1), round(late[0], 1)],
        "drift_percent": round(drift, 2),
        "checkpoint_bytes": [early[1], late[1]],
        "bytes_a_round": round((folder / "rounds.jsonl").stat().st_size / done),
        "seconds": round(time.monotonic() - began),
    }
    return result, done == count and drift < 2 and late[1] < early[1] + A_ROUND * count


def sites(folder: Path, count: int) -> tuple[dict[str, Any], bool]:
    settings = {"clients": count, "participation": 1.0, "dataset__unlabeled": 2 * count, "partition__kind": "iid"}
    crowd = {"model__width": 1, "method__views": 2, "dataset__test": 20, "fleet__kind": "pool", "fleet__workers": 2}
    before, began = megabytes(), time.monotonic()
    session = start(tiny(rounds=1, **settings, **crowd), folder)
    (record,) = session.advance()
    answered = len(record["cohort"]) - len(left_out(record))
    grew = megabytes() - before
    result = {"sites": count, "answered": answered, "grew_mb": round(grew), "seconds": round(time.monotonic() - began)}
    return result, answered == count and grew < 512


def main(options: list[str]) -> int:
    measure = {"rounds": rounds, "sites": sites}[options[0]]
    count = int(options[1]) if len(options) > 1 else {"rounds": 10_000, "sites": 1_000}[options[0]]
    with tempfile.TemporaryDirectory() as folder:
        result, good = measure(Path(folder) / "run", count)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
