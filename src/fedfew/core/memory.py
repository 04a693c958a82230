"""The machine's memory size, and reuse of the memory that a training step frees."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT = 1 << 30
OLDER = 32 << 20
"""The largest mmap threshold that older versions of glibc accept."""


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
