"""From a checked config to the parts of a run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfew.config import worker
from fedfew.config.names import SITES, Named
from fedfew.config.tables import apply_overrides
from fedfew.config.tree import Config
from fedfew.core.engine import Engine
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.streams import stream
from fedfew.core.types import Fleet, Method, Oracle, Report, ServerSite
from fedfew.data.clients import ClientsData, D
from fedfew.data.dataset import SiteSamples
from fedfew.data.federation import Federation, federate
from fedfew.data.samples import Images
from fedfew.methods.entry import POPULATION
from fedfew.models import IMAGES, MODELS, TAKES
from fedfew.models.build import build_head, build_model, has_backbone
from fedfew.runtime.exchange import Clients
from fedfew.runtime.gate import reply_limit
from fedfew.runtime.pool import PoolFleet
from fedfew.runtime.site import InlineFleet, Sites
from fedfew.runtime.wire import Wire

if TYPE_CHECKING:  # cryptography belongs to an extra
    from fedfew.secure.client import SumClient
    from fedfew.secure.exchange import SecureExchange
    from fedfew.secure.identity import Identity


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a run."""

    config: Config
    federation: Federation
    network: Network
    server: ServerSite
    clients: Clients

    @property
    def algorithm(self) -> Method:
        return self.config.method

    @property
    def backbone(self) -> dict[str, Any]:
        """Name, hash and preprocessing of a pretrained backbone; nothing for other models."""
        if self.federation.origin is not None:
            return dict(self.federation.origin.backbone)
        return self.network.module.about() if has_backbone(self.network.module) else {}

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
        config.dataset,
        labels=config.labels,
        clients=config.clients,
        kind=config.partition.entry,
        options=config.partition.settings,
    )


def model_of(config: Config, data: ClientsData) -> nn.Module:
    """The model for the clients' samples, its weights drawn from the seed or pretrained."""
    model, kind = config.model, data.about["kind"]
    takes = (kind,) if model.own else TAKES.get(model.name, IMAGES)
    if kind not in takes:
        fits = [name for name in MODELS if kind in TAKES.get(name, IMAGES)]
        message = f"model {model.name} takes {' and '.join(takes)}, but the dataset {config.dataset.name} holds {kind}"
        raise FedfewError("E110", "model.name", message, f"Take one of {', '.join(fits)}")
    channels, size = (*data.shape, 0)[:2]
    chosen = model.entry if model.own else model.name
    return build_model(chosen, channels, size, len(data.classes), model.settings, stream(config.seed, "model"))


def prepare(config: Config, data: D, report: Report | None = None, backbone: str | None = None) -> tuple[D, Network]:
    """The data and the network to train on them: features and a head where the model's backbone is frozen.

    ``backbone`` is the SHA-256 that the backbone must have to fit another machine's head.
    """
    module, engine = model_of(config, data), config.engine
    ours = module.hash if has_backbone(module) else ""
    if backbone is not None and ours != backbone:
        why = f"the server's backbone has the SHA-256 {backbone[:16]}…, this site's {ours[:16]}…"
        raise FedfewError("E417", "model", why, "Install the same weights as the server")
    if has_backbone(module):
        module.check(data.samples)
    if has_backbone(module) and module.once:
        from fedfew.models.backbones.features import with_features  # noqa: PLC0415 - only for a backbone

        displaced, named = (bool(getattr(config.method, wish, False)) for wish in ("scanners", "names"))
        data = with_features(data, module, cores(), engine.chosen_device(), report, displaced, named)
        module = module.trained_part()
    return data, _bound(module, data, engine)


def features_of(config: Config, images: Tensor, report: Report | None = None) -> Tensor:
    """What the config's frozen backbone makes of images, from the cache or computed."""
    model, (channels, size) = config.model, images.shape[1:3]
    module = build_model(model.name, channels, size, 2, model.settings, stream(config.seed, "model"))
    assert has_backbone(module)
    from fedfew.models.backbones.features import extract  # noqa: PLC0415 - only for a backbone

    device = config.engine.chosen_device()
    return extract(module, [Images(images)], cores(), device, report)[0][:, 0]


def network_of(config: Config, data: ClientsData) -> Network:
    """The network for data that are prepared, with the first weights ω_0."""
    if data.origin is not None and config.model.frozen and not config.model.own:
        # no need to load the backbone
        width, rng = data.samples.about()["shape"][0], stream(config.seed, "model")
        head = build_head(width, len(data.classes), rng, config.model.settings.get("hidden", 0))
        head.classifier = data.origin.classifier
        return _bound(head, data, config.engine)
    return _bound(model_of(config, data), data, config.engine)


def _bound(module: nn.Module, data: ClientsData, engine: Engine) -> Network:
    """A module as the network for these samples, with the step sizes of its parts."""
    network = Network.of(module, engine, data.samples)
    rates = module.rates(network.layout) if has_backbone(module) else None
    return network if rates is None else replace(network, rates=rates.to(network.device))


def assemble(config: Config, remote_sites: Sequence[str] = (), report: Report | None = None) -> Parts:
    """Everything but the fleet; ``remote_sites`` are the names of clients that are other machines.

    ``report`` is called with the progress of the feature extraction.
    """
    federation, entry = federation_of(config, remote_sites), config.entry
    if federation.sites:
        config = _counted(config, federation)
    unknown = bool(remote_sites) or not bool((federation.truth >= 0).all())
    if (isinstance(config.method, Oracle) or entry.pools) and unknown:
        why = f"{config.method_name} needs the labels of the clients' images, which are unknown"
        raise FedfewError("E113", "method.name", why)
    if config.client_labels.each and unknown:
        why = "client_labels gives labels to clients, but the classes of these sites' images are unknown"
        raise FedfewError("E113", "client_labels.each", why, "Put the labels you have into server/")
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
        exchange=_sums(config, network)[0],
    )
    labeled = federation.server.to(network.device)
    pools = entry.pools or any(transform.pools for transform in clients.transforms)
    server = ServerSite(network, labeled, len(federation.classes), federation.open)
    if pools and not remote_sites:
        everything = federation.server.join(LabeledSet(federation.samples, federation.truth))
        held = round(clients.cohort * float(np.mean(federation.partition.sizes)))
        server = replace(server, pool=everything, cohort_images=held)
    return Parts(config, federation, network, server, clients)


def _counted(config: Config, federation: Federation) -> Config:
    """The config with the numbers that only a dataset with its own sites knows."""
    clients, labels, validation = federation.partition.clients, len(federation.server), len(federation.validation)
    numbers = {"clients": clients, "labels": labels, "dataset.validation": validation}
    method: Any = config.method
    if not config.own_sites and getattr(method, POPULATION, None) == config.clients:  # taken from the config's own K
        method, numbers = replace(method, population=clients), numbers | {f"method.{POPULATION}": clients}
    return replace(
        config,
        method=method,
        clients=clients,
        labels=labels,
        dataset=replace(config.dataset, validation=validation),
        partition=Named.sites(),
        document=apply_overrides(config.document | {"partition": {"kind": SITES}}, numbers),
    )


def sites_of(config: Config, data: ClientsData, network: Network, identity: "Identity | None" = None) -> Sites:
    """The clients, as one process trains them; ``identity``: who a real site is in secure sums."""
    return Sites(
        algorithm=config.method,
        transforms=config.transforms,
        network=network,
        samples=data.samples.to(network.device),
        truth=data.truth,
        share=data.partition.of,
        classes=len(data.classes),
        seed=config.seed,
        test=data.test.to(network.device),
        validation=data.validation.to(network.device),
        own_view=config.client.own,
        known=config.client_labels.known(data.partition.clients, config.dataset.seed),
        sums=_sums(config, network, identity)[1],
    )


def _sums(
    config: Config, network: Network, identity: "Identity | None" = None
) -> "tuple[SecureExchange | None, SumClient | None]":
    """How the server collects and clients answer where the server sees sums only."""
    if config.privacy.sums != "secure" or not config.entry.asks_clients:
        return None, None
    from fedfew.config.sums import client_of, exchange_of  # noqa: PLC0415 - of an extra

    return exchange_of(config), client_of(config, network, identity)


def local_fleet(parts: Parts) -> Fleet:
    """The fleet of this machine that the config names; a pool's workers get the samples through shared memory."""
    config, data = parts.config, parts.federation
    sites = sites_of(config, data, parts.network)
    devices = [name.strip() for name in config.fleet.devices.split(",") if name]
    for name in devices:
        config.engine.on(name).chosen_device()  # raises if there is none
    shared = parts.network.device.type != "cpu" and not config.fleet.workers and not devices
    if config.fleet.kind == "inline" or config.remote or shared:  # or processes would take turns on the one accelerator
        return InlineFleet(sites)
    about, tensors = data.pack()
    devices = devices or [""] * min(config.fleet.workers or cores(), parts.clients.cohort)
    limit = reply_limit(parts.wire.reply_schema(parts.network.layout))
    return PoolFleet(
        devices, {"config": config.document, "data": about}, tensors, data.partition.sizes, sites.score,
        worker.__name__, config.fleet.timeout, limit,
    )  # fmt: skip


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
