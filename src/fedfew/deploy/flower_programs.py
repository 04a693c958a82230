"""Flower's programs as fedfew starts them: its command line, its SuperLink and its SuperNode.

``python -m fedfew.deploy.flower_programs '[["supernode", "register", …], …]'`` runs several commands in one process,
because importing Flower costs more than any of them, and prints one JSON line per command. With ``superlink OPTIONS``
or ``supernode OPTIONS`` it is that program.
"""

import contextlib
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

SUPERLINK, SUPERNODE = "superlink", "supernode"
PATIENCE = 25
"""Seconds that the SuperLink waits for its database; its clients wait 30, and then ask again."""


def superlink(options: list[str]) -> None:
    """Flower's SuperLink, except that it waits longer for its database.

    Where many processes share a processor, a request may wait longer than Flower's 5 s for the lock of the database. It
    is then answered with HTTP 500, which ends a ServerApp, a SuperNode and the thread of its heartbeats.
    """
    from flwr.superlink.cli import flower_superlink

    sys.argv = ["flower-superlink", *options]
    with contextlib.suppress(ImportError, AttributeError):  # another version of Flower: as it is
        sql: Any = import_module("flwr.supercore.sql_mixin")
        sql.SQLITE_PRAGMAS = (*sql.SQLITE_PRAGMAS, ("busy_timeout", str(1000 * PATIENCE)))
    flower_superlink()


def supernode(options: list[str]) -> None:
    """Flower's SuperNode, except that it survives broken TLS connections, which Flower takes for bad certificates.

    It touches a file at every answer of the server, so that the site's status follows the truth.
    """
    import httpx
    from flwr.supernode.cli import flower_supernode

    sys.argv, contact = ["flower-supernode", *options], Path(os.environ.get("FEDFEW_CONTACT", os.devnull))
    try:
        connection: Any = import_module("flwr.supernode.fleet_http_connection")
        make = connection.make_simple_http_retry_invoker
    except (ImportError, AttributeError):  # another version of Flower: as it is
        flower_supernode()
        return

    def patient() -> object:
        invoker = make()
        gives_up = invoker.should_giveup

        def should_giveup(error: Exception) -> bool:
            broken = isinstance(error, httpx.TransportError) and "CERTIFICATE" not in str(error).upper()
            return not broken and gives_up is not None and gives_up(error)

        answered = invoker.on_success

        def on_success(state: object) -> None:
            with contextlib.suppress(OSError):
                contact.touch()
            if answered is not None:
                answered(state)

        invoker.should_giveup, invoker.on_success = should_giveup, on_success
        return invoker

    connection.make_simple_http_retry_invoker = patient
    flower_supernode()


def main(commands: list[list[str]]) -> None:
    """Run the commands; success or failure is in Flower's JSON output, not in its exit status."""
    answers = os.fdopen(os.dup(1), "w")
    for command in commands:
        with tempfile.TemporaryFile() as caught:  # by descriptor: Flower's own capturing writes to the real stdout
            os.dup2(caught.fileno(), 1)
            failure = _run([*command, "--format", "json"])
            sys.stdout.flush()
            caught.seek(0)
            answers.write(json.dumps(_result(caught.read().decode(errors="replace") or failure)) + "\n")
    answers.flush()


def _run(command: list[str]) -> str:
    from flwr.cli.app import app

    try:
        app(command, standalone_mode=False)
    except SystemExit:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _result(text: str) -> dict[str, object]:
    """The JSON object in Flower's output, whatever surrounds it."""
    start = text.find("{")
    with contextlib.suppress(ValueError):
        result = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
        if isinstance(result, dict) and result:
            return result
    return {"success": False, "error-message": text.strip()[-500:] or "no output"}


if __name__ == "__main__":
    programs = {SUPERLINK: superlink, SUPERNODE: supernode}
    if sys.argv[1] in programs:
        programs[sys.argv[1]](sys.argv[2:])
    else:
        main(json.loads(sys.argv[1]))
