"""What methods that exchange whole models have in common on the wire."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfew.core.layout import Layout
from fedfew.core.types import ClientUpdate, Contribution, Expected, Schema, ServerState


def scalar(value: float) -> Tensor:
    """A number as it travels in a payload, e.g. the round's step size."""
    return torch.tensor(value, dtype=torch.float64)


def model_reply(layout: Layout) -> Schema:
    """The reply {"psi"}: one vector near the ω that was sent."""
    return {"psi": Expected((layout.size,), near="omega")}


def contributions(state: ServerState, updates: Sequence[ClientUpdate], name: str = "psi") -> list[Contribution]:
    """The updates as an aggregator sees them."""
    return [
        Contribution(u.client, u.reply[name], u.examples, state.participation[u.client], u.metrics.get("steps", 1.0))
        for u in updates
    ]
