"""The environment of a run: versions, threads and machine, which decide whether equal bits can be expected."""

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

from fedfew.core.engine import CPU


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
