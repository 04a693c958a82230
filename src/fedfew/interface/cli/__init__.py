"""The command line: every command is declared here, without torch; its work is in fedfew.interface.commands."""

from fedfew.interface.cli.commands import app
from fedfew.interface.cli.main import main

__all__ = ["app", "main"]
