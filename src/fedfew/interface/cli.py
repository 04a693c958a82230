"""The command line: lists the commands, and reports an error in one line with a code and exit status 2."""

import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from fedfew import __version__
from fedfew.core.errors import FedfewError
from fedfew.core.text import plain
from fedfew.interface.console import complain
from fedfew.interface.lazy import LazyGroup


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"fedfew {__version__}")
        ctx.exit()


VERSION = click.Option(
    ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
DATA = LazyGroup("data", "Fetch datasets once, and list them.", {"fetch": "data:fetch", "ls": "data:ls"})
DOCTOR = LazyGroup(
    "deploy doctor",
    "Check a side of a network before it starts.",
    {"server": "deploy:doctor_server", "client": "deploy:doctor_client"},
    extra="flower",
)
DEPLOY = LazyGroup(
    "deploy",
    "Run on real machines, connected by Flower with TLS and keys.",
    {
        "init": "deploy:init",
        "server": "deploy:server",
        "client": "deploy:client",
        "local": "deploy:local",
        "doctor": DOCTOR,
    },
    extra="flower",
)
app = LazyGroup(
    "fedfew",
    "Federated learning when only the server has labels, and only a few.",
    {
        "demo": "demo:demo",
        "try": "verdict:try_folder",
        "init": "check:init",
        "check": "check:check",
        "run": "run:run",
        "resume": "run:resume",
        "evaluate": "verdict:evaluate",
        "predict": "model:predict",
        "label-next": "model:label_next",
        "export": "model:export",
        "ls": "runs:ls",
        "compare": "compare:compare",
        "sweep": "sweep:sweep",
        "learning-curve": "sweep:learning_curve",
        "report": "show:report",
        "watch": "show:watch",
        "track": "runs:track",
        "archive": "runs:archive",
        "partition": "data:partition",
        "methods": "catalog:methods",
        "presets": "catalog:presets",
        "explain": "catalog:explain",
        "doctor": "doctor:doctor",
        "data": DATA,
        "deploy": DEPLOY,
    },
    params=[VERSION],
)


def main() -> NoReturn:
    """Entry point of ``fedfew``; ``--debug`` anywhere shows the traceback of an error."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    for request in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell ignores it for background processes
        signal.signal(request, _interrupt)
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except FedfewError as fault:
        if debug:
            raise
        complain(fault)
        sys.exit(2)
    except MemoryError as error:
        if debug:
            raise
        complain(FedfewError("E119", "memory", plain(error) or "this machine has too little"))
        sys.exit(2)
    sys.exit(0)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C: stop, and show how to continue."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
