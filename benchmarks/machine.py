"""The machine of a measurement, the speed of its cores in matrix products, and the memory of a process tree."""

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, sleep, time
from typing import Any

import torch

from fedfew.config.parts import cores
from fedfew.core.environment import processor

ROOT = Path(__file__).resolve().parents[1]
BUSY = 0.1
"""If other work takes more than this share, the machine is unfit for measurements."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
PACKAGES = ("torch", "numpy", "pillow", "flwr", "ray")
BETWEEN_SAMPLES = 0.25
"""Seconds between two readings of the memory; each takes a few milliseconds."""
GEMM_SIZES = (1024, 2048, 3072)
GEMM_SECONDS = 1.5


def machine() -> dict[str, Any]:
    """Processor, cores, system and versions."""
    result: dict[str, Any] = {
        "processor": processor(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "busy_before": round(busy(), 3),
        "taken": int(time()),
    }
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            result[package] = version(package)
    return result


def busy(seconds: float = 1.5) -> float:
    """Share of all cores' time that other processes take, while this one sleeps."""
    before = _jiffies()
    sleep(seconds)
    idle, total = (after - early for after, early in zip(_jiffies(), before, strict=True))
    return 1 - idle / max(total, 1)


def _jiffies() -> tuple[int, int]:
    """Idle and total time of all cores since boot."""
    counts = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return counts[3] + counts[4], sum(counts)


def progress(text: str) -> None:
    """Print a progress message."""
    print(text, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def memory_of(process: int) -> int:
    """Bytes of one process, shared memory counted proportionally; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def tree(process: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    result, left = [], [process]
    while left:
        one = left.pop()
        result.append(one)
        left += parents.get(one, [])
    return result


def own_peak() -> int:
    """Peak memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def run_watched(module: str, arguments: Sequence[str], timeout: float = 3600.0) -> tuple[dict[str, Any], int]:
    """Run ``python -m module``; returns its last line as JSON, and the peak memory of its process tree."""
    plain = {key: value for key, value in os.environ.items() if key not in THREAD_VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env=plain, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    done, peak = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(BETWEEN_SAMPLES):
            peak[0] = max(peak[0], sum(memory_of(one) for one in tree(process.pid)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        done.set()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with status {process.returncode}:\n{err[-2000:]}")
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result, peak[0]


def gemm(threads: int, seconds: float = GEMM_SECONDS) -> float:
    """GFLOP/s of the fastest float32 product found: matrices by torch's BLAS, 1×1 and 3×3 convolutions by oneDNN.

    On some processors oneDNN's kernels beat the BLAS; the floor must be the fastest that the machine can do.
    """
    torch.set_num_threads(threads)
    best = 0.0
    works: list[tuple[float, Any]] = []
    for n in GEMM_SIZES:
        a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
        works.append((2.0 * n**3, lambda a=a, b=b, out=out: torch.mm(a, b, out=out)))
    for channels, kernel in ((512, 1), (256, 3)):
        image = torch.randn(16, channels, 16, 16).contiguous(memory_format=torch.channels_last)
        weight = torch.randn(channels, channels, kernel, kernel).contiguous(memory_format=torch.channels_last)
        flops, pad = 2.0 * image.numel() * weight[0].numel(), kernel // 2
        works.append((flops, lambda image=image, weight=weight, pad=pad: torch.conv2d(image, weight, padding=pad)))
    with torch.inference_mode():
        for flops, work in works:
            work()
            end = perf_counter() + seconds / len(works)
            while perf_counter() < end:
                start = perf_counter()
                work()
                best = max(best, flops / (perf_counter() - start) / 1e9)
    return best


def peak(seconds: float = GEMM_SECONDS) -> dict[str, float]:
    """GFLOP/s of all cores: the better of one process with all threads and one process of one thread for each core."""
    count = cores()
    together = subprocess.Popen(_gemm_command(count, seconds), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    threaded = float(together.communicate()[0])
    alone = [
        subprocess.Popen(_gemm_command(1, seconds), cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    rates = [float(process.communicate()[0]) for process in alone]
    return {"threads": threaded, "processes": sum(rates), "best": max(threaded, sum(rates)), "core": max(rates)}


def _gemm_command(threads: int, seconds: float) -> list[str]:
    return [sys.executable, "-m", "benchmarks.machine", str(threads), str(seconds)]


if __name__ == "__main__":
    print(gemm(int(sys.argv[1]), float(sys.argv[2])))
