"""Several commands of Flower's command line in one process, because importing Flower costs more than any of them.

Run as ``python -m fedfew.deploy.flower.cli '[["supernode", "register", …], …]'``; prints one JSON line a command.
"""

import contextlib
import json
import os
import sys
import tempfile

from flwr.cli.app import app


def main(commands: list[list[str]]) -> None:
    """Run the commands; Flower's exit status says nothing, its JSON does."""
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
    try:
        app(command, standalone_mode=False)
    except SystemExit:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _result(text: str) -> dict[str, object]:
    """The JSON object in what Flower printed, whatever stands around it."""
    start = text.find("{")
    with contextlib.suppress(ValueError):
        found = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
        if isinstance(found, dict) and found:
            return found
    return {"success": False, "error-message": text.strip()[-500:] or "no output"}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
