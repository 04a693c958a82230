"""Puts 100,000 damaged images through the reader and prints what became of them; run it by hand.

python -m benchmarks.reliability.images [COUNT] [SEED]
"""

import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tests.data.image_zoo import mutants

from fedfew.data.dataset import Unreadable
from fedfew.data.images.decode import decode


def peak_mb() -> float:
    """The most memory this process has had so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main(count: int, seed: int) -> int:
    """Anything but pixels or a reason is a failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff remarks on every damaged file
    fates: Counter[str] = Counter()
    failures, slowest = 0, 0.0
    before, start = peak_mb(), time.perf_counter()
    for number, content in enumerate(mutants(count, seed)):
        begun = time.perf_counter()
        try:
            decode(content, 32, 3)
            fates["read"] += 1
        except Unreadable as fault:
            fates[re.sub(r"\d[\d,]*", "N", str(fault).partition(" (")[0].partition(";")[0])] += 1
        except Exception as error:
            failures += 1
            print(f"mutant {number}: {type(error).__name__}: {error}")
        slowest = max(slowest, time.perf_counter() - begun)
    seconds = time.perf_counter() - start
    print(f"{count:,} damaged images, seed {seed}: {failures} failures, {fates['read']:,} read, {seconds:.0f} s")
    print(f"slowest {slowest * 1000:.0f} ms, memory grew by {peak_mb() - before:.0f} MB")
    for reason, times in fates.most_common(12):
        print(f"{times:8,}  {reason}")
    result = {
        "images": count,
        "failures": failures,
        "slowest_ms": round(slowest * 1000),
        "grew_mb": round(peak_mb() - before),
    }
    print(json.dumps(result))
    return 1 if failures or result["grew_mb"] >= 512 else 0


if __name__ == "__main__":
    options = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*(options + [100_000, 0][len(options) :])))
