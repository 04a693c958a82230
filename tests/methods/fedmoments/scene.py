"""A small federation of features, and fedmoments run on it round by round."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedfew.aggregators import AGGREGATORS
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerSite, ServerState
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.basis import features as features_of
from fedfew.methods.fedmoments.method import FedMoments
from fedfew.methods.fedmoments.server import mixed
from fedfew.methods.fedmoments.survey import Survey
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.models.layers import Head
from fedfew.runtime.rounds import count, server_turn
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised

CLASSES, WIDTH = 4, 12
SERVER = Supervised(LocalSGD(epochs=20, batch=20, lr=0.1, momentum=0.9, schedule="cosine", rounds=8))
METHOD = FedMoments(SERVER, LocalSGD(), AGGREGATORS["fedavg"], width=8, folds=3, survey=10_000)
Tamper = Callable[[ClientUpdate, ServerState], ClientUpdate]


def cloud(labels: Tensor, seed: int) -> Tensor:
    """Features of one length around class means of a quarter of the noise's length, as N×1×d."""
    means = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    x = 2.0 + 0.6 * means[labels] + noise
    features: Tensor = (LENGTH * x / x.norm(dim=1, keepdim=True))[:, None].half()
    return features


@cache
def world(mu: float, clients: int = 60, images: int = 40) -> tuple[list[Tensor], list[Tensor], ServerSite, LabeledSet]:
    """Clients with class shares from Dir(μ), a server with twelve labels a class, and a test set."""
    rng = np.random.default_rng(3)
    shares = rng.dirichlet([mu] * CLASSES, clients)
    labels = [torch.from_numpy(rng.choice(CLASSES, images, p=share)) for share in shares]
    parts = [cloud(own, 100 + k) for k, own in enumerate(labels)]
    few = torch.arange(CLASSES).repeat(12)
    network = Network.of(Head(WIDTH, CLASSES))
    held = torch.arange(CLASSES).repeat(250)
    return (
        parts,
        labels,
        ServerSite(network, LabeledSet(Vectors(cloud(few, 1)), few), CLASSES),
        LabeledSet(Vectors(cloud(held, 2)), held),
    )


def accuracy(site: ServerSite, omega: Tensor, test: LabeledSet) -> float:
    site.network.load(omega)
    return float((site.network.probabilities(test.samples).argmax(1) == test.labels).float().mean())


def alone(method: FedMoments, site: ServerSite, rounds: int = 8) -> Tensor:
    """The model of server-only training, or what the labels show to be better."""
    state = method.start(torch.zeros_like(site.network.snapshot()))
    for t in range(rounds):
        state = server_turn(method, replace(state, round=t, participation={0: t} if t else {}), site, torch.Generator())
    return mixed(state.extra, state.sigma)


def asked(
    method: FedMoments, state: ServerState, parts: Sequence[Tensor], who: Sequence[int], site: ServerSite
) -> list[ClientUpdate]:
    def update(k: int) -> ClientUpdate:
        client = ClientSite(k, site.network, Vectors(parts[k]), CLASSES)
        trained = method.train_client(method.broadcast(state, k), client, torch.Generator())
        return ClientUpdate(k, trained.reply, len(parts[k]), trained.metrics)

    return [update(k) for k in who]


def trained(
    method: FedMoments,
    parts: Sequence[Tensor],
    site: ServerSite,
    cohorts: Sequence[Sequence[int]],
    tamper: Tamper | None = None,
) -> ServerState:
    """The state after rounds in which these clients answer."""
    state = method.start(torch.zeros_like(site.network.snapshot()))
    for cohort in cohorts:
        state = server_turn(method, state, site, torch.Generator())
        updates = asked(method, state, parts, cohort if method.asks(state) else [], site)
        updates = [tamper(update, state) for update in updates] if tamper else updates
        state = replace(state, participation=count(state, updates), round=state.round + 1)
        state, _ = method.after_clients(state, updates, site, torch.Generator())
    return state


def survey_of(parts: Sequence[Tensor]) -> Survey:
    """What a survey of these clients finds, without the way over the wire."""
    own = [features_of(Vectors(part)) for part in parts]
    total, x = [p.sum(0) for p in own], torch.cat(own)
    between = torch.stack([torch.outer(t, t) / len(p) for t, p in zip(total, own, strict=True)]).sum(0)
    sizes = torch.tensor([float(len(p)) for p in own])
    return Survey(len(x), float(sizes.square().sum()), len(own), x.sum(0), x.T @ x, between)
