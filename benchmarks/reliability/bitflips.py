"""R3: flip single bits all over run folders, stopped and finished; each must be reported, repaired, and change nothing.

    python -m benchmarks.reliability.bitflips [FLIPS]

prints {"flips", "detected", "healed", "same_hash", "by_code"}.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from tests.runs.crashes import copy_of, files_of, flip, resume
from tests.runtime.tiny_run import model_hash, records, tiny

from fedfew.data import included as datasets
from fedfew.runs.session import start

METHODS: dict[str, dict[str, Any]] = {
    "fedmix": {},
    "fedmatch": {"method__interval": 1, "clients": 4, "participation": 0.5},  # with files for single clients
}


def folders(base: Path, method: str) -> tuple[Path, Path]:
    """The same run stopped after two of three rounds, and finished."""
    config = tiny(rounds=3, method__name=method, **METHODS[method])
    finished, stopped = base / method / "finished", base / method / "stopped"
    list(start(config, finished).advance())
    rounds = start(config, stopped).advance()
    next(rounds)
    next(rounds)
    rounds.close()
    return stopped, finished


def places(folder: Path, rng: random.Random) -> tuple[Path, int]:
    """A file and a bit of it: every file alike, or every byte alike."""
    files, by_size = files_of(folder), rng.random() < 0.5
    (path,) = rng.choices(files, [file.stat().st_size if by_size else 1 for file in files])
    return path, rng.randrange(8 * path.stat().st_size)


def attack(base: Path, flips: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    built = {method: folders(base, method) for method in METHODS}
    tally: dict[str, Any] = {"flips": 0, "detected": 0, "healed": 0, "same_hash": 0}
    codes: Counter[str] = Counter()
    for number in range(flips):
        method = "fedmatch" if number % 4 == 3 else "fedmix"
        stopped, finished = built[method]
        origin = rng.choice((stopped, finished))
        path, bit = places(origin, rng)
        folder = copy_of(origin, "flipped")
        flip(folder / path.relative_to(origin), bit)
        run, told = resume(folder)
        codes.update({fault.code for fault in told})
        same = model_hash(run) == model_hash(finished) and records(run) == records(finished)
        healed = resume(folder)[1] == []
        tally["flips"] += 1
        tally["detected"] += bool(told)
        tally["healed"] += healed
        tally["same_hash"] += same
        if tally["flips"] % 100 == 0:
            sys.stderr.write(f"{tally}\n")
        if not (told and healed and same):
            sys.stderr.write(f"bit {bit} of {path}: told {told}, healed {healed}, same {same}\n")
    return tally | {"by_code": dict(sorted(codes.items()))}


def main(words: list[str]) -> int:
    flips = int(words[0]) if words else 1000
    vars(datasets)["mini_mnist"] = cache(datasets.mini_mnist)  # read the images once, not a thousand times
    with tempfile.TemporaryDirectory() as folder:
        tally = attack(Path(folder), flips, seed=3)
    sys.stdout.write(json.dumps(tally) + "\n")
    return 0 if tally["detected"] == tally["healed"] == tally["same_hash"] == flips else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
