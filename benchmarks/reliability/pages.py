"""The live page over a run of 10,000 rounds and over 2,000 runs: every page within a second of the processor's time.

    python -m benchmarks.reliability.pages [ROUNDS [RUNS]]

prints {"rounds", "runs", "cpu_seconds": {page: [first time, second time]}}: in seconds of the processor, because a
busy machine does not spend more of them. First means that nothing of the folder has been read before.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import httpx
from tests.interface.fedfew_command import record, small_run, written_run

from fedfew.interface.page.app import make_app
from fedfew.interface.page.library import key_of

MOST = 1.0
COPIED = ("run.toml", "rounds.jsonl", "summary.json", "environment.json", "classes.json")


def long_run(out: Path, rounds: int) -> Path:
    """One with all that a round can have: votes, weights, directions, refused and missing clients."""
    rng = random.Random(0)

    def one(number: int) -> dict[str, Any]:
        cohort = sorted(rng.sample(range(100), 10))
        fault = {"client": cohort[0], "code": "E404", "reason": "psi holds NaN or infinity"}
        return record(
            number, accuracy=rng.random(), validation=rng.random(), cohort=cohort, coverage=0.5, correct=0.8,
            weights={str(k): 0.1 for k in cohort}, pseudo_classes=[rng.randint(0, 50) for _ in range(10)],
            updates=[{"client": k, "norm": 1.0, "cosine": 0.1} for k in cohort], bytes_up=1000, bytes_down=2000,
            rejected=[fault] if rng.random() < 0.1 else [],
        )  # fmt: skip

    return written_run(out, [one(n) for n in range(1, rounds + 1)], rounds=rounds + 1)


def many_runs(folder: Path, count: int) -> None:
    """A real run and the same with other seeds and methods."""
    first = small_run(folder / "run-0000")
    config = (first / "run.toml").read_text("utf-8")
    for number in range(1, count):
        copy = folder / f"run-{number:04d}"
        copy.mkdir()
        for name in COPIED[1:]:
            shutil.copy(first / name, copy / name)
        (copy / "run.toml").write_text(config.replace("\nseed = 0", f"\nseed = {number}"), "utf-8")


async def cost(root: Path, places: list[str]) -> dict[str, list[float]]:
    """Seconds of the processor for each page, and again."""
    app: Any = make_app(root, frozenset({"localhost"}))
    result: dict[str, list[float]] = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        await client.get("/static/none")  # templates and imports
        for _ in range(2):
            for address in places:
                began = process_time()
                answer = await client.get(address)
                assert answer.status_code == 200, (address, answer.status_code)
                result.setdefault(address.partition("?")[0], []).append(round(process_time() - began, 2))
    return result


def measure(folder: Path, rounds: int, runs: int) -> dict[str, Any]:
    (folder / "one").mkdir()
    long_run(folder / "one" / "long", rounds)
    key = key_of((folder / "one" / "long").resolve(), (folder / "one").resolve())
    alone = asyncio.run(cost((folder / "one").resolve(), ["/", f"/run/{key}", f"/run/{key}/chart/accuracy.json"]))
    many_runs(folder / "many", runs)
    crowd = asyncio.run(cost((folder / "many").resolve(), ["/", "/compare", "/compare/chart/s0-accuracy.json"]))
    names = {f"/run/{key}": "run", f"/run/{key}/chart/accuracy.json": "charts of the run", "/": "list of one"}
    result = {names[address]: times for address, times in alone.items()}
    result |= {{"/": "list", "/compare": "comparison"}.get(p, "charts of the comparison"): t for p, t in crowd.items()}
    return {"rounds": rounds, "runs": runs, "cpu_seconds": result}


def main(words: list[str]) -> int:
    rounds, runs = ([int(word) for word in words] + [10_000, 2_000][len(words) :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), rounds, runs)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if all(max(times) < MOST for times in result["cpu_seconds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
