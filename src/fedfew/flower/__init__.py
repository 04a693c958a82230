"""For an existing Flower project: `run` in its ServerApp, `train` in its ClientApp.

The project keeps its model, data loading, pyproject.toml and SuperLink; the server has a few labels, and the clients'
samples need none. The run gates, screens, records and resumes as any other of fedfew's.
"""

from fedfew.core.extras import require

require("flower", "fedfew.flower")

from fedfew.flower.client import train  # noqa: E402 - only with the extra
from fedfew.flower.server import run  # noqa: E402

__all__ = ["run", "train"]
