"""From a checked config to the parts of a run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedfew.config import worker
from fedfew.config.tree import Config, DatasetSettings
from fedfew.core.engine import Engine
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import settings_of
from fedfew.core.streams import stream
from fedfew.core.types import Fleet, Method, Oracle, Pool, Report, ServerSite
from fedfew.data.dataset import SiteSamples
from fedfew.data.federation import Federation, federate
from fedfew.data.shares import VirtualPartition
from fedfew.models.build import HasBackbone, build_head, build_model
from fedfew.runtime.exchange import Clients
from fedfew.runtime.gate import reply_limit
from fedfew.runtime.pool import PoolFleet
from fedfew.runtime.site import InlineFleet, Sites
from fedfew.runtime.wire import Wire


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a run."""

    config: Config
    algorithm: Method
    federation: Federation
    network: Network
    server: ServerSite
    clients: Clients

    @property
    def backbone(self) -> dict[str, Any]:
        """Name, hash and preprocessing of a pretrained backbone; nothing for other models."""
        return backbone_of(self.federation, self.network)

    @property
    def wire(self) -> Wire:
        """The method's messages as they are sent."""
        return Wire(self.algorithm, self.clients.transforms)


def federation_of(config: Config, remote_sites: Sequence[str] = ()) -> Federation:
    """The data, split and partitioned among clients; the images of remote sites are elsewhere."""
    dataset = config.dataset.source()
    if remote_sites:
        offsets = np.zeros(len(remote_sites) + 1, np.int64)
        empty = dataset.train.samples.take(torch.arange(0))
        dataset = replace(dataset, sites=SiteSamples(tuple(remote_sites), empty, offsets))
    return federate(
        dataset,
        labels=config.labels,
        clients=config.clients,
        kind=config.partition.entry,
        options=config.partition.settings,
        **{key: getattr(config.dataset, key) for key in settings_of(DatasetSettings)},
    )


def model_of(config: Config, federation: Federation) -> nn.Module:
    """The model for the federation's images, its weights drawn from the seed or pretrained."""
    model, (channels, size, _) = config.model, federation.shape
    chosen = model.entry if model.own else model.name
    return build_model(chosen, channels, size, len(federation.classes), model.settings, stream(config.seed, "model"))


def prepare(
    config: Config, federation: Federation, report: Report | None = None, backbone: str | None = None
) -> tuple[Federation, Network]:
    """The federation and the network to train on it: features and a head where the model's backbone is frozen.

    ``backbone`` is the SHA-256 that the backbone must have to fit another machine's head.
    """
    module, engine = model_of(config, federation), config.engine
    ours = module.hash if isinstance(module, HasBackbone) else ""
    if backbone is not None and ours != backbone:
        what = f"the server's backbone has the SHA-256 {backbone[:16]}…, this site's {ours[:16]}…"
        raise FedfewError("E417", "model", what, "Install the same weights as the server")
    if isinstance(module, HasBackbone):
        module.check(federation.samples)
    if isinstance(module, HasBackbone) and module.once:
        federation = module.featured(federation, cores(), engine.place(), report)
        module = module.trained_part()
    return federation, _bound(module, federation, engine)


def network_of(config: Config, federation: Federation) -> Network:
    """The network for a federation's images or features, with the first weights ω_0."""
    if federation.origin is not None and config.model.frozen and not config.model.own:
        # no need to load the backbone
        width, rng = federation.samples.about()["shape"][0], stream(config.seed, "model")
        return _bound(build_head(width, len(federation.classes), rng), federation, config.engine)
    return _bound(model_of(config, federation), federation, config.engine)


def _bound(module: nn.Module, federation: Federation, engine: Engine) -> Network:
    """A module as the network for images or features, with the step sizes of its parts."""
    network = Network.of(module, engine, federation.samples)
    rates = module.rates(network.layout) if isinstance(module, HasBackbone) else None
    return network if rates is None else replace(network, rates=rates.to(network.device))


def backbone_of(federation: Federation, network: Network) -> dict[str, Any]:
    """Name, hash and preprocessing of a pretrained backbone; nothing for other models."""
    if federation.origin is not None:
        return dict(federation.origin.backbone)
    return network.module.about() if isinstance(network.module, HasBackbone) else {}


def assemble(config: Config, remote_sites: Sequence[str] = (), report: Report | None = None) -> Parts:
    """Everything but the fleet; ``remote_sites`` are the names of clients that are other machines.

    ``report`` is called with the progress of the feature extraction.
    """
    federation, method, entry = federation_of(config, remote_sites), config.method, config.entry
    if federation.sites:
        config = config.counted(federation.partition.clients, len(federation.server), len(federation.validation))
    unknown = bool(remote_sites) or not bool((federation.truth >= 0).all())
    if (isinstance(method, Oracle) or entry.pools) and unknown:
        what = f"{config.method_name} needs the labels of the clients' images, which are unknown"
        raise FedfewError("E113", "method.name", what)
    if config.client_labels.each and unknown:
        what = "client_labels gives labels to clients, but the classes of these sites' images are unknown"
        raise FedfewError("E113", "client_labels.each", what, "Put the labels you have into server/")
    federation, network = prepare(config, federation, report)
    clients = Clients(
        seed=config.seed,
        count=config.clients,
        cohort=config.cohort,
        availability=config.availability,
        gate=config.gate,
        sizes=None if config.remote else federation.partition.sizes,
        transforms=config.transforms,
        min_updates=config.min_updates,
    )
    labeled = federation.server.to(network.device)
    pools = entry.pools or any(transform.pools for transform in clients.transforms)
    pool = pool_of(federation, clients.cohort) if pools and not remote_sites else None
    server = ServerSite(network, labeled, len(federation.classes), federation.open, pool)
    return Parts(config, method, federation, network, server, clients)


def pool_of(federation: Federation, cohort: int) -> Pool:
    """All images in one place, for the bound."""
    held = round(cohort * float(np.mean(federation.partition.sizes)))
    return Pool(federation.server.join(LabeledSet(federation.samples, federation.truth)), held)


def sites_of(config: Config, federation: Federation, network: Network) -> Sites:
    """The clients of a simulation, as one process trains them."""
    return Sites(
        algorithm=config.method,
        transforms=config.transforms,
        network=network,
        samples=federation.samples.to(network.device),
        truth=federation.truth,
        shares=federation.partition,
        classes=len(federation.classes),
        seed=config.seed,
        test=federation.test.to(network.device),
        validation=federation.validation.to(network.device),
        own_view=config.client.own,
        known=config.client_labels.known(federation.partition.clients, config.dataset.seed),
    )


def local_fleet(parts: Parts) -> Fleet:
    """The fleet of this machine that the config names; a pool's workers get the images through shared memory."""
    sites = sites_of(parts.config, parts.federation, parts.network)
    shared = parts.network.device.type != "cpu" and not parts.config.fleet.workers
    if parts.config.fleet.kind == "inline" or shared:  # processes would take turns on the one accelerator
        return InlineFleet(sites)
    federation = parts.federation
    data = {
        "samples": federation.samples.data,
        "truth": federation.truth,
        "test_samples": federation.test.samples.data,
        "test_labels": federation.test.labels,
        "validation_samples": federation.validation.samples.data,
        "validation_labels": federation.validation.labels,
    }
    partition, virtual = federation.partition, None
    if isinstance(partition, VirtualPartition):
        virtual = partition.spec
    else:
        data |= {"order": torch.from_numpy(partition.order), "offsets": torch.from_numpy(partition.offsets)}
    hello = {
        "config": parts.config.document,
        "virtual": virtual,
        "classes": list(federation.classes),
        "samples": federation.samples.about(),
        "origin": federation.origin and dict(federation.origin.about),
    }
    workers = min(parts.config.fleet.workers or cores(), parts.clients.cohort)
    limit = reply_limit(parts.wire.reply_schema(parts.network.layout))
    return PoolFleet(
        workers, hello, data, federation.partition.sizes, sites.score, worker.__name__, parts.config.fleet.timeout,
        limit,
    )  # fmt: skip


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
