"""The command ``fedfew``. Every command is declared here, without torch; its work is in fedfew.interface.commands."""

import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from fedfew.core.errors import FedfewError
from fedfew.core.text import plain
from fedfew.interface.cli.commands import app
from fedfew.interface.console import complain

__all__ = ["app", "main"]


def main() -> NoReturn:
    """Run a command. An error is one line with a code, and exit status 2; ``--debug`` anywhere shows its traceback."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    for request in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell ignores it for background processes
        signal.signal(request, _interrupt)
    try:
        sys.exit(app(prog_name="fedfew", standalone_mode=False) or 0)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as fault:
        fault.show()
        sys.exit(fault.exit_code)
    except FedfewError as fault:
        if debug:
            raise
        complain(fault)
    except MemoryError as error:
        if debug:
            raise
        complain(FedfewError("E119", "memory", plain(error) or "this machine has too little"))
    sys.exit(2)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C: stop, and show how to continue."""
    raise KeyboardInterrupt
