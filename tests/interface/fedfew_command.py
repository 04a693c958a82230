"""The command line as a person meets it, in this process: exit status, stdout and stderr of one command."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from fedfew.interface.cli import main

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Said:
    """What a command gave back."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def fedfew(capsys: Capture, *words: object) -> Said:
    """Run a command; a traceback would end the test."""
    before, capsys_before = sys.argv, capsys.readouterr()
    assert capsys_before is not None
    sys.argv = ["fedfew", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return Said(status, captured.out, captured.err)
