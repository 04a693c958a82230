"""Console output: messages for people on stderr, results on stdout, and a final JSON line on request."""

import json
import sys
from typing import Any

from rich.console import Console

from fedfew.core.errors import ConfigErrors, FedfewError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def complain(fault: FedfewError) -> None:
    """Print an error in red, or all of them if there are several."""
    faults = fault.errors if isinstance(fault, ConfigErrors) else [fault]
    for one in faults:
        err.print(f"[bold red]{one.code}[/]", end=" ")
        err.print(str(one).removeprefix(one.code).strip(), markup=False, soft_wrap=True)


def warn(fault: FedfewError) -> None:
    """Print a warning that does not stop the work."""
    err.print(f"[bold yellow]{fault.code}[/]", end=" ")
    err.print(str(fault).removeprefix(fault.code).strip(), markup=False, soft_wrap=True)


def print_json(result: dict[str, Any]) -> None:
    """Print the last line of stdout."""
    sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    sys.stdout.flush()
