"""For an existing Flower project: a Strategy for its ServerApp, and the training step of its ClientApp.

The project keeps its model, data loading, pyproject.toml and SuperLink; the server gets a few labels, and the clients'
images need none. `FewLabels` replaces Flower's FedAvg; the project's own ``@app.train()`` calls `train`.
"""

from fedfew.core.extras import require

require("flower", "fedfew.flower")

from fedfew.flower.client import train  # noqa: E402 - only with the extra
from fedfew.flower.server import FewLabels  # noqa: E402

__all__ = ["FewLabels", "train"]
