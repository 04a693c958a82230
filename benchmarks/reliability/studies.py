"""kill -9 during `fedfew sweep` and `python -m paper`: the same command again finishes, with the same models.

    python -m benchmarks.reliability.studies [KILLS]

prints {"kills", "runs", "same_hash", "orphans", "failed"}.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.interface.fedfew_command import launch, result, write_config
from tests.runtime.tiny_run import TINY, alive, children, eventually, gone, model_hash

ROUNDS = 6
PROGRAMS = {"sweep": "fedfew", "paper": "paper"}
"""What is killed, and the module that starts it."""


def words(study: str, config: Path, out: Path) -> list[object]:
    """A study of some runs."""
    options = ["--set", f"rounds={ROUNDS}", "--jobs", 2, "--out", out, "--json"]
    if study == "sweep":
        return ["sweep", config, "--grid", "partition.mu=0.1,1", "--grid", "seed=0,1", *options]
    return ["extra", "--preset", config, *options]


def hashes(folder: Path) -> dict[str, str]:
    """The model of every run below a folder."""
    return {str(path.parent.relative_to(folder)): model_hash(path.parent) for path in folder.rglob("summary.json")}


def below(pid: int) -> list[int]:
    """A process's children and theirs."""
    direct = children(pid)
    return [*direct, *(inner for child in direct for inner in children(child))]


def commits(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("rounds.jsonl"))


def attack(base: Path, study: str, kills: int, seed: int) -> dict[str, Any]:
    rng, config = random.Random(seed), write_config(base, TINY)
    alone, torn = base / f"{study}-undisturbed", base / f"{study}-torn"
    result(launch(*words(study, config, alone), module=PROGRAMS[study]))
    done, orphans = 0, 0
    while done < kills:
        before = commits(torn)
        process = launch(*words(study, config, torn), module=PROGRAMS[study])
        wanted = before + rng.randint(1, 5)
        eventually(lambda: commits(torn) >= wanted or process.poll() is not None, 300)  # noqa: B023
        if process.poll() is not None:
            process.communicate()
            break
        left = below(process.pid)
        process.kill()
        process.communicate()
        orphans += 0 if gone(left, 60) else sum(map(alive, left))
        done += 1
    last = result(launch(*words(study, config, torn), module=PROGRAMS[study]))
    same = hashes(torn) == hashes(alone)
    runs = {"runs": len(hashes(alone)), "same_hash": same, "orphans": orphans, "failed": len(last["runs"]["failed"])}
    return {"kills": done} | runs


def main(options: list[str]) -> int:
    kills = int(options[0]) if options else 5
    with tempfile.TemporaryDirectory() as folder:
        tally = {study: attack(Path(folder), study, kills, 5) for study in PROGRAMS}
    sys.stdout.write(json.dumps(tally) + "\n")
    good = all(
        measured["same_hash"] and not measured["orphans"] and not measured["failed"] for measured in tally.values()
    )
    return 0 if good and all(measured["kills"] for measured in tally.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
