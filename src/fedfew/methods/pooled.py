"""Pooled training, the upper bound: all images with their true labels in one place, without averaging.

ω_{t+1} = ω_t − η ∇ CE(y, f(x))   with the server's settings, on as many images as the server and a round's clients use

The images come from repeated shuffles of the whole pool, so that every image is seen equally often.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.settings import Doc, NonNegative
from fedfew.core.streams import stream
from fedfew.core.types import ServerSite, ServerState
from fedfew.methods.entry import Entry, Scenario
from fedfew.methods.server_only import ServerOnly
from fedfew.training.supervised import train_server


@dataclass(frozen=True)
class Pooled(ServerOnly):
    """What the same model reaches with every label and no federation. Possible only in simulation."""

    lambda_s: Annotated[NonNegative, Doc("weight of the cross-entropy")] = 1.0

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """Train on a round's images from the pool."""
        return self.train(state, state.omega, self.lot(state, rng), site, rng)

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """A warm-up on the server's labels comes before the first round."""
        lot, sigma = self.lot(state, rng), state.omega
        if self.warmup:
            sigma = train_server(self.server, sigma, state, site, rng, self.lambda_s, self.warmup)
        return self.train(state, sigma, lot, site, rng)

    def lot(self, state: ServerState, rng: torch.Generator) -> int:
        """The seed of the shuffles, drawn once."""
        return int(state.extra["lot"] if "lot" in state.extra else torch.randint(2**62, (), generator=rng))

    def train(self, state: ServerState, start: Vector, lot: int, site: ServerSite, rng: torch.Generator) -> ServerState:
        """``start`` trained on as many images of the pool as a round uses."""
        pool = site.pool
        if pool is None:
            raise FedfewError("E113", "method.name", "pooled needs the clients' images and labels in one place")
        passes = self.server.sgd.epochs * len(site.labeled) + self.client.epochs * site.cohort_images
        chosen = sequence(len(pool), state.round * passes, passes, lot)
        drawn = replace(site, labeled=pool.take(chosen), passes=None)
        sigma = train_server(self.server, start, state, drawn, rng, self.lambda_s, 1)
        return replace(state, sigma=sigma, extra=state.extra | {"lot": torch.tensor(lot)})


def sequence(count: int, start: int, length: int, lot: int) -> Tensor:
    """Entries start … start + length of the endless sequence of shuffles of 0..count−1 seeded by ``lot``."""
    parts = []
    for epoch in range(start // count, (start + length - 1) // count + 1):
        order = torch.randperm(count, generator=stream(lot, "pooled", epoch))
        parts.append(order[max(start - epoch * count, 0) : start + length - epoch * count])
    return torch.cat(parts)


def refuse(method: Pooled, scenario: Scenario) -> Iterator[FedfewError]:
    """Real sites have no pool."""
    if scenario.real_sites:
        problem = "pooled needs all images and their labels in one place, which only a simulation has"
        yield FedfewError("E113", "method.name", problem, "Use it without fleet.network")


POOLED = Entry(Pooled, aggregator="uniform", asks_clients=False, pools=True, refuse=refuse)
