"""The machine a run is on: versions and threads, which decide whether equal bits can be expected, and its memory."""

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfew.core.engine import CPU

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT = 1 << 30
OLDER = 32 << 20
"""The largest mmap threshold that older versions of glibc accept."""


def environment(command: str = "", device: torch.device = CPU) -> dict[str, Any]:
    """The content of environment.json; ``fingerprint`` is the part that affects the bits of the results."""
    return {
        "fingerprint": fingerprint(device),
        "started": datetime.now().astimezone().isoformat(timespec="microseconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "git": _git(),
        "command": command or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def fingerprint(device: torch.device = CPU) -> dict[str, Any]:
    """What must be equal for a resumed run to give the same bits."""
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "fedfew": metadata.version("fedfew"),
        "torch": torch.__version__,
        "threads": 1,
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    } | ({} if device.type == "cpu" else {"device": accelerator})


def processor() -> str:
    """The name of the processor, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git() -> str:
    """The commit of the working folder, if it is in a git checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def keep_freed_memory() -> None:
    """Ask glibc not to return large blocks to the system between two steps.

    By default it returns blocks from 32 MB on, and the system then has to provide each page again: a seventh of the
    time of ResNet-9 at width 64. The threads' own arenas ignore the option, so all threads share one: features on two
    threads then cost 5.1 ms of a core per image instead of 8.2. Without glibc nothing changes. The setting lasts until
    the process ends.
    """
    if not sys.platform.startswith("linux"):
        return
    set_option(getattr(ctypes.CDLL(None), "mallopt", None))


def set_option(mallopt: Callable[[int, int], int] | None) -> None:
    """All or none: setting the second alone would freeze the first at its current value, which is far lower."""
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, OLDER)):
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_ARENA_MAX, 1)


def machine_memory() -> int:
    """The most bytes this process can have: the machine's memory, or the limit of its container."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(limit).read_text("ascii")))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return min(limits)
