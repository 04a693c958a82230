"""Small runs of anything the registries name, through the public config: six clients, 48 digits, a narrow network."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedfew.aggregators import AGGREGATORS
from fedfew.config.parts import Parts, assemble, sites_of
from fedfew.config.schema import load
from fedfew.config.tree import Config, settings_for
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload, Reply
from fedfew.core.samples import LabeledSet
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite, ClientUpdate, Oracle, OracleSite, Outcome, ServerState, Trained
from fedfew.methods import METHODS
from fedfew.runtime.rounds import count, run_rounds
from fedfew.runtime.site import InlineFleet

TINY: dict[str, Any] = {
    "seed": 3,
    "rounds": 2,
    "clients": 6,
    "participation": 0.85,
    "labels": 20,
    "dataset": {"name": "mini-mnist", "validation": 10, "test": 20, "unlabeled": 48, "open": 12, "seed": 0},
    "partition": {"kind": "dirichlet", "mu": 1.0},
    "server": {"lr": 0.05, "momentum": 0.9, "epochs": 1, "batch": 10},
    "client": {"lr": 0.02, "batch": 8},
    "fleet": {"kind": "inline"},
}
SURE = {"threshold": 0.05, "highest": 0.05, "warmup": 2, "subset": 8, "survey": 8}
"""Where a method has such settings: every label counts, the warm-up is short, and few open images are asked about."""


def fitting(method: str) -> list[str]:
    """The aggregators that make sense with a method."""
    return [name for name in AGGREGATORS if name not in METHODS[method].unfit]


def tiny_config(method: str, overrides: dict[str, Any] | None = None) -> Config:
    """A config for a method; one that needs a normalisation or a backbone of its own gets it."""
    known = settings_for("method", method)
    chosen = {f"method.{name}": value for name, value in SURE.items() if name in known}
    faults = []
    models = [{"name": "cnn", "width": 4, "norm": norm} for norm in ("group", "batch", "none")]
    for model in (*models, {"name": "efficientnet-lite0", "size": 32}):
        table = TINY | {"method": {"name": method}, "model": model}
        try:
            return load(table | {"objective": {"threshold": 0.05}}, chosen | (overrides or {}))
        except FedfewError as fault:
            if fault.code != "E113":
                raise
            faults.append(fault)
    raise faults[0]


def tiny_rounds(config: Config, parts: Parts | None = None) -> list[tuple[ServerState, Any]]:
    """The rounds of a config, in this process and without a folder."""
    parts = parts or assemble(config)
    fleet = InlineFleet(sites_of(config, parts.federation, parts.network))
    start = parts.algorithm.start(parts.network.snapshot())
    return list(run_rounds(parts.clients, parts.algorithm, parts.server, fleet, start, config.rounds))


@dataclass(frozen=True, eq=False)
class Stage:
    """A method in its first round, with the server trained and the clients not yet asked."""

    parts: Parts
    state: ServerState

    @property
    def payload(self) -> Payload:
        return self.parts.algorithm.broadcast(self.state, 0)

    def train(self, client: int, images: int | None = None, payload: Payload | None = None) -> Trained:
        """One client's training, on all or on its first few images."""
        parts, federation = self.parts, self.parts.federation
        index = torch.from_numpy(federation.partition.of(client))[:images]
        classes, rng = len(federation.classes), stream(0, "contract", client)
        payload = parts.algorithm.broadcast(self.state, client) if payload is None else payload
        if isinstance(parts.algorithm, Oracle):
            labeled = LabeledSet(federation.samples.take(index), federation.truth[index])
            oracle = OracleSite(client, parts.network, labeled, classes)
            return parts.algorithm.train_with_labels(payload, oracle, rng)
        site = ClientSite(client, parts.network, federation.samples.take(index), classes)
        return parts.algorithm.train_client(payload, site, rng)

    def finish(self, replies: dict[int, tuple[Trained, int]]) -> tuple[ServerState, Outcome]:
        """The round's end with these answers, each with the number of its images."""
        updates = [ClientUpdate(k, t.reply, n, t.metrics) for k, (t, n) in sorted(replies.items())]
        counted = replace(self.state, participation=count(self.state, updates))
        parts = self.parts
        return parts.algorithm.after_clients(counted, updates, parts.server, stream(0, "contract", "aggregate"))

    def size(self, client: int) -> int:
        return int(self.parts.federation.partition.sizes[client])


@cache
def first_round(method: str) -> Stage:
    """A method with its tiny config; shared by tests, since every step loads the weights it starts from."""
    parts = assemble(tiny_config(method))
    start = parts.algorithm.start(parts.network.snapshot())
    return Stage(parts, parts.algorithm.warm_up(start, parts.server, stream(0, "contract", "server")))


def tensors_of(state: ServerState) -> Iterator[Tensor]:
    yield from (state.omega, state.sigma, *state.extra.values())


def same(one: Reply, other: Reply) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
