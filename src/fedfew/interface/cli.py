"""The command line: collects the verbs, turns faults into one line with a code and exit status 2, and nothing else."""

import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from fedfew.interface.commands import (
    check,
    compare,
    data,
    demo,
    deploy,
    explain,
    export,
    init,
    label_next,
    ls,
    methods,
    partition,
    predict,
    report,
    reproduce,
    resume,
    run,
    sweep,
    track,
    watch,
)

app = typer.Typer(
    name="fedfew",
    help="Federated learning when only the server has labels, and only a few.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
for verb in (
    demo,
    init,
    check,
    run,
    resume,
    predict,
    label_next,
    export,
    ls,
    compare,
    sweep,
    reproduce,
    report,
    track,
    watch,
    partition,
    methods,
    explain,
):
    verb.register(app)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


def main() -> NoReturn:
    """Entry point of ``fedfew``; ``--debug`` anywhere shows the traceback of a fault."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    for request in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: in the background a shell hands it down as ignored
        signal.signal(request, _interrupt)
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        from fedfew.core.errors import FedfewError
        from fedfew.interface.console import complain

        if debug or not isinstance(error, FedfewError):
            raise
        complain(error)
        sys.exit(2)
    sys.exit(0)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """A polite request to end is treated like Ctrl-C: stop, and say how to go on."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
