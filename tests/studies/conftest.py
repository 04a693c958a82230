"""The digits are read once for all tests of this folder, and the runs of ``tests/runs`` are at hand."""

from tests.runs.conftest import digits_read_once, stopped, undisturbed

__all__ = ["digits_read_once", "stopped", "undisturbed"]
