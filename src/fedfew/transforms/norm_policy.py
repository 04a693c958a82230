"""How normalisation layers are treated: averaged like weights, kept by each client, or measured by the server.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
ICLR 2021 (kept by each client).

    average       scale, shift and running statistics are entries of the vector like any other
    local         client k puts its own γ_k, β_k, μ_k, σ²_k into what it receives, and sends the received ones back
    server-data   after each round the running statistics are measured again on the server's images
    clients       the same on all images, the server's and every client's (SemiFL's static batch norm), in simulation

A client's own evaluation would use its own normalisation; the server evaluates with its own.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload, Schema, Vector
from fedfew.core.network import Network
from fedfew.core.samples import Samples
from fedfew.core.types import ClientSite, ServerSite, ServerState, Trained, Transform

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def norm_entries(network: Network) -> Tensor:
    """A mask over the vector: true for scale, shift and statistics of normalisation layers."""
    names = frozenset(
        f"{path}.{name}" if path else name
        for path, layer in network.module.named_modules()
        if isinstance(layer, NORMS)
        for name, _ in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    )
    return network.layout.select(network.vector, names)


class LocalNorm(Transform):
    """Clients keep their normalisation layers to themselves."""

    keeps_norms = True

    def check(self, site: ServerSite) -> None:
        if not norm_entries(site.network).any():
            problem = "the model has no normalisation layers, so clients have nothing to keep"
            raise FedfewError("E113", "model.name", problem, 'Use norm.policy = "average"')

    def incoming(self, payload: Payload, schema: Schema, site: ClientSite) -> Payload:
        """The payload with the client's own normalisation layers."""
        mask, own = norm_entries(site.network).cpu(), dict(payload)
        for near in {expected.near for expected in schema.values() if expected.near}:
            kept = site.memory.get(f"norm.{near}")
            if kept is not None and kept.shape == payload[near][mask].shape:
                own[near] = payload[near].clone()
                own[near][mask] = kept
        return own

    def outgoing(
        self, trained: Trained, payload: Payload, schema: Schema, site: ClientSite, rng: torch.Generator
    ) -> Trained:
        """Keeps the client's normalisation, and sends the received one back."""
        mask, reply = norm_entries(site.network).cpu(), dict(trained.reply)
        for name, expected in schema.items():
            if expected.near:
                site.memory[f"norm.{expected.near}"] = reply[name][mask]
                reply[name] = torch.where(mask, payload[expected.near], reply[name])
        return replace(trained, reply=reply)


class ServerStatistics(Transform):
    """After each round batch-norm statistics are those of the server's images."""

    def samples(self, site: ServerSite) -> Samples:
        """The samples the statistics are measured on."""
        return site.labeled.samples

    def after_round(self, state: ServerState, site: ServerSite) -> ServerState:
        """Measure the statistics of ω again, and of every other model the method keeps (targets, groups)."""
        size, samples = site.network.layout.size, self.samples(site)
        models = {name: t for name, t in state.extra.items() if t.is_floating_point() and t.shape[-1:] == (size,)}
        measure = partial(with_statistics, site.network, samples=samples)
        measured = {
            name: torch.stack([measure(row) for row in rows.view(-1, size)]).view_as(rows)
            for name, rows in models.items()
        }
        omega = measure(state.omega)
        return replace(state, omega=omega, extra=state.extra | measured)


class AllStatistics(ServerStatistics):
    """Static batch norm (Diao et al. 2021): statistics of all images, the server's and every client's."""

    pools = True

    def check(self, site: ServerSite) -> None:
        if site.pool is None:
            problem = "statistics of all clients' images need them in one place, which only a simulation has"
            raise FedfewError("E113", "norm.policy", problem, 'Use norm.policy = "server-data"')

    def samples(self, site: ServerSite) -> Samples:
        """The server's samples and every client's."""
        assert site.pool is not None  # checked before the first round
        return site.pool.samples


def with_statistics(network: Network, vector: Vector, samples: Samples, batch: int = 500) -> Vector:
    """The vector with running means and variances measured on these samples; batches count by their size."""
    norms = [layer for layer in network.module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    network.load(vector)
    network.set_training(True)
    before = [layer.momentum for layer in norms]
    seen = 0
    with torch.no_grad():
        for part in samples.split(batch):
            seen += len(part)
            for layer in norms:
                layer.momentum = len(part) / seen  # the running value becomes the mean over all samples so far
            network(part)
    for layer, momentum in zip(norms, before, strict=True):
        layer.momentum = momentum
    return network.snapshot()
