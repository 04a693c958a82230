"""The runs of ``tests/runs`` are at hand in this folder too."""

from tests.runs.conftest import stopped, undisturbed

__all__ = ["stopped", "undisturbed"]
