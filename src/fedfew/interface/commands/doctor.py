"""fedfew doctor: facts about this machine and installation, one line each; for bug reports and before long runs."""

import os
import platform
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fedfew import __version__
from fedfew.config.parts import cores
from fedfew.core.engine import devices
from fedfew.core.environment import processor
from fedfew.core.text import size
from fedfew.data.cache import cache_folder
from fedfew.data.sources import inventory
from fedfew.interface.console import out, print_json

ROOM = 1 << 30
"""Free bytes below which disk space is a problem."""


def doctor(json: bool) -> None:
    problems: list[str] = []
    facts: dict[str, Any] = {
        "fedfew": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "torch": {
            "version": torch.__version__,
            "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "devices": devices(),
        },
        "threads": {
            "cores": cores(),
            "torch": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        },
        "packages": {name: metadata.version(name) for name in ("numpy", "pydantic", "scipy", "click", "rich")},
        "extras": extras(),
        "cache": _cache(problems),
        "disk": _disk(problems),
    }
    if json:
        print_json(facts | {"problems": problems})
    else:
        for name, value in facts.items():
            out.print(f"{name + ':':12}{_words(value)}", markup=False, soft_wrap=True)
        for problem in problems:
            out.print(f"[bold red]problem:[/]    {problem}", soft_wrap=True)
    if problems:
        raise SystemExit(2)


def extras() -> dict[str, str]:
    """Every extra of the installation: installed, or the packages that are missing."""
    wanted: dict[str, list[str]] = {}
    for requirement in metadata.requires("fedfew") or []:
        if match := re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement):
            wanted.setdefault(match[2], []).append(match[1])
    return {name: _lacking(packages) for name, packages in wanted.items()}


def _lacking(packages: list[str]) -> str:
    lacking = [package for package in packages if not any(metadata.distributions(name=package))]
    return f"lacks {', '.join(lacking)}" if lacking else "installed"


def _cache(problems: list[str]) -> dict[str, Any]:
    folder = cache_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK):
        problems.append(f"the cache folder {folder} cannot be written; set FEDFEW_DATA to another place")
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "folder": str(folder),
        "bytes": used,
        "datasets": [entry["name"] for entry in inventory() if entry["fetched"]],
    }


def _disk(problems: list[str]) -> dict[str, int]:
    folders = {"here": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(path).free for name, path in folders.items()}
    problems += [f"{size(count)} free for {name} ({folders[name]})" for name, count in free.items() if count < ROOM]
    return free


def _words(value: Any) -> str:
    """One line for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}".strip() for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return f"{size(value)}" if isinstance(value, int) and value >= 1000 else str(value)
