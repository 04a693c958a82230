"""R1: kill -9 at random moments, some inside a checkpoint write, resume each time, compare with an undisturbed run.

    python -m benchmarks.reliability.kill9 [KILLS [INSIDE]]

prints {"kills", "inside", "resumed", "rounds_lost", "same_hash", "orphans"}: all resumed, no committed round lost, the
model and rounds.jsonl (seconds aside) as if nothing had happened, and no process left.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.interface.fedfew_command import LASTING, committed, launch, result, write_config
from tests.runtime.tiny_run import alive, children, eventually, gone, model_hash, records

from fedfew.core.errors import FedfewError
from fedfew.core.storage import open_sealed
from fedfew.runs.session import Experiment, reopen


@dataclass
class Tally:
    """What came of the kills."""

    kills: int = 0
    inside: int = 0
    """Kills that hit between the first and the last file operation of a checkpoint."""
    resumed: int = 0
    rounds_lost: int = 0
    same_hash: bool = True
    orphans: int = 0


def writing(run: Path) -> bool:
    """Whether the folder is in the midst of a checkpoint: something is there that no manifest covers yet."""
    newest = committed(run)
    body = open_sealed(run / "checkpoints" / f"round-{newest:06d}.json")
    if body is None:
        return False
    try:
        ahead = (run / "rounds.jsonl").stat().st_size > body["facts"]["rounds"]["bytes"]
    except OSError:
        return False
    half = any((run / "checkpoints").glob(".*.tmp"))
    return half or ahead or (run / "checkpoints" / f"state-{newest + 1:06d}.safetensors").exists()


def wait_for_a_write(process: subprocess.Popen[str], run: Path) -> None:
    """Until a checkpoint is being written, or the process has ended."""
    folder = run / "checkpoints"
    while process.poll() is None:
        if any(name.endswith(".tmp") and "state" in name for name in map(str, folder.iterdir())):
            return


def strike(process: subprocess.Popen[str], run: Path, rng: random.Random, aimed: bool) -> int | None:
    """Kill the process at its moment and count the workers it leaves; None if it was done before that."""
    if not eventually(lambda: committed(run) >= 0 or process.poll() is not None, 120):
        raise RuntimeError("the run did not begin within two minutes")
    if aimed:
        wait_for_a_write(process, run)
        time.sleep(rng.choice([0.0, 0.0005, 0.002]))
    elif rng.random() < 0.5:  # any moment of a process's life: imports, reading, repair, starting workers
        time.sleep(rng.uniform(0.0, 6.0))
    else:  # a moment among the rounds
        before = committed(run)
        eventually(lambda: committed(run) > before or process.poll() is not None, 120)
        time.sleep(rng.uniform(0.0, 0.5))
    if process.poll() is not None:
        return None
    workers = children(process.pid)
    process.kill()
    process.communicate()
    return 0 if gone(workers) else sum(map(alive, workers))


def attack(folder: Path, kills: int, inside: int, seed: int, document: dict[str, Any] = LASTING) -> Tally:
    """Start, kill, resume, kill, … finish, compare; as often as it takes."""
    rng, tally, number = random.Random(seed), Tally(), 0
    config = write_config(folder, document)
    undisturbed = Experiment.load(document, {"fleet.kind": "inline"}).run(folder / "undisturbed")

    def refuse(fault: FedfewError) -> None:
        raise RuntimeError(f"a kill has done damage: {fault}")

    while tally.kills < kills:
        number += 1
        run = folder / f"run-{number}"
        process = launch("run", config, "--out", run, "--json")
        while tally.kills < kills:
            left = kills - tally.kills
            aimed = tally.inside < inside and (left <= inside - tally.inside or rng.random() < 0.4)
            left_over = strike(process, run, rng, aimed)
            if left_over is None:
                break
            tally.kills += 1
            tally.orphans += left_over
            writing_now = writing(run)
            tally.inside += writing_now
            done = committed(run)
            tally.rounds_lost += done - reopen(run, refuse).state.round
            process = launch("resume", run, "--json")
            tally.resumed += 1
            sys.stderr.write(f"kill {tally.kills}: round {done}{', inside a write' * writing_now}\n")
        output = result(process)
        tally.same_hash &= output["model_sha256"] == model_hash(undisturbed)
        tally.same_hash &= records(run) == records(undisturbed)
    return tally


def main(words: list[str]) -> int:
    kills, inside = ([int(word) for word in words] + [50, 10][len(words) :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        tally = attack(Path(folder), kills, inside, seed=9)
    sys.stdout.write(json.dumps(asdict(tally)) + "\n")
    good = tally.resumed == tally.kills and tally.inside >= inside and tally.same_hash
    good = good and not tally.rounds_lost and not tally.orphans
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
