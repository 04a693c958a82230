"""What becomes of normalisation layers in a federation: averaged like weights, kept by each client, or the server's.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
ICLR 2021 (kept by each client).

    average       scale, shift and running statistics are entries of the vector like any other
    local         client k puts its own γ_k, β_k, μ_k, σ²_k into what it receives, and sends the received ones back
    server-data   after each round the running statistics are measured anew on the server's images

A client's evaluation at home would use its own normalisation; the server evaluates with its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Vector
from fedfew.core.network import Network
from fedfew.core.settings import Doc
from fedfew.core.types import (
    Algorithm,
    ClientSite,
    ClientUpdate,
    Payload,
    Schema,
    ServerSite,
    ServerState,
    Trained,
)
from fedfew.methods.fedavg import NO_WAY_TO_TRUST

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class NormPolicy:
    """What becomes of normalisation layers."""

    policy: Annotated[
        Literal["average", "local", "server-data"],
        Doc("scale, shift and statistics: averaged, kept by each client (FedBN), or statistics of the server's images"),
    ] = "average"

    def around(self, algorithm: Algorithm) -> Algorithm:
        """The method with this policy."""
        if self.policy == "local":
            return LocalNorm(algorithm)
        return ServerStatistics(algorithm) if self.policy == "server-data" else algorithm


def norm_entries(network: Network) -> Tensor:
    """A mask over the vector: true for scale, shift and statistics of normalisation layers."""
    names = frozenset(
        f"{path}.{name}" if path else name
        for path, layer in network.module.named_modules()
        if isinstance(layer, NORMS)
        for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    )
    return network.layout.select(network.vector, names)


@dataclass(frozen=True, eq=False)
class LocalNorm:
    """A method whose clients keep their normalisation layers to themselves."""

    inner: Algorithm
    unfit: ClassVar[Mapping[str, str]] = {"fltrust": NO_WAY_TO_TRUST}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "fedavg"

    def start(self, omega: Vector) -> ServerState:
        return self.inner.start(omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        if not norm_entries(site.network).any():
            what = "the model has no normalisation layers, so there is nothing that clients could keep"
            raise FedfewError("E113", "model.name", what, 'Use norm.policy = "average"')
        return self.inner.before_clients(state, site, rng)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return self.inner.broadcast(state, client)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Trains from what was sent with the client's own normalisation in it; keeps that, and sends the rest."""
        mask = norm_entries(site.network).cpu()
        own = dict(payload)
        schema = self.inner.reply_schema(site.network.layout)
        for near in {expected.near for expected in schema.values() if expected.near}:
            kept = site.memory.get(f"norm.{near}")
            if kept is not None and kept.shape == payload[near][mask].shape:
                own[near] = payload[near].clone()
                own[near][mask] = kept
        trained = self.inner.train_client(own, site, rng)
        reply = dict(trained.reply)
        for name, expected in schema.items():
            if expected.near:
                site.memory[f"norm.{expected.near}"] = reply[name][mask]
                reply[name] = torch.where(mask, payload[expected.near], reply[name])
        return replace(trained, reply=reply)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        return self.inner.after_clients(state, updates, site, rng)

    def reply_schema(self, layout: Layout) -> Schema:
        return self.inner.reply_schema(layout)


@dataclass(frozen=True, eq=False)
class ServerStatistics:
    """A method after whose rounds batch-norm statistics are those of the server's images."""

    inner: Algorithm
    unfit: ClassVar[Mapping[str, str]] = {}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "fedavg"

    def start(self, omega: Vector) -> ServerState:
        return self.inner.start(omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return self.inner.before_clients(state, site, rng)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return self.inner.broadcast(state, client)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        return self.inner.train_client(payload, site, rng)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        """Statistics measured anew in ω, and in every other model the method carries on (targets, groups)."""
        state = self.inner.after_clients(state, updates, site, rng)
        size, images = site.network.layout.size, site.labeled.images
        models = {name: t for name, t in state.extra.items() if t.is_floating_point() and t.shape[-1:] == (size,)}
        measured = {
            name: torch.stack([with_statistics(site.network, row, images) for row in models[name].view(-1, size)]).view(
                models[name].shape
            )
            for name in models
        }
        omega = with_statistics(site.network, state.omega, images)
        return replace(state, omega=omega, extra=state.extra | measured)

    def reply_schema(self, layout: Layout) -> Schema:
        return self.inner.reply_schema(layout)


def with_statistics(network: Network, vector: Vector, images: Tensor, batch: int = 500) -> Vector:
    """The vector with running means and variances measured on these images; batches count by their size."""
    norms = [layer for layer in network.module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    network.load(vector)
    network.set_training(True)
    before = [layer.momentum for layer in norms]
    seen = 0
    with torch.no_grad():
        for part in images.split(batch):
            seen += len(part)
            for layer in norms:
                layer.momentum = len(part) / seen  # the running value becomes the mean over all images so far
            network(part)
    for layer, momentum in zip(norms, before, strict=True):
        layer.momentum = momentum
    return network.snapshot()
