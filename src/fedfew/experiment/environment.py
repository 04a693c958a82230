"""What a run ran on: versions, threads and machine, so that equal bits can be expected, or not."""

import os
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch


def environment(command: str = "") -> dict[str, Any]:
    """The environment as environment.json keeps it; ``fingerprint`` is the part that decides about the bits."""
    return {
        "fingerprint": fingerprint(),
        "started": datetime.now().astimezone().isoformat(timespec="microseconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "git": _git(),
        "command": command or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def fingerprint() -> dict[str, Any]:
    """What must be equal for a run to go on with the same bits."""
    return {
        "fedfew": metadata.version("fedfew"),
        "torch": torch.__version__,
        "threads": 1,
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
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
