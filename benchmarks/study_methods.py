"""Rows of the few-labels study that are not methods of fedfew: a config names ``benchmarks.study_methods:NAME``.

PROPAGATION   every image in one place, its label spread from the server's labels over a graph of neighbors
              (D. Zhou et al. 2004; weights of A. Iscen et al. 2019), classes equally frequent; then Gaussian
              classes with one covariance on these labels
OUTAGE        fedmoments, where a share of the clients never answers again after ``since`` steps of EM
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated
from unittest.mock import patch

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.linalg import cg
from torch import Tensor
from torch.nn.functional import normalize

from fedfew.core.layout import Payload, Vector
from fedfew.core.settings import Count, Doc, Fraction, Natural, Positive
from fedfew.core.types import ClientSite, ServerSite, ServerState, Trained
from fedfew.methods.fedmoments import prior
from fedfew.methods.fedmoments.basis import features
from fedfew.methods.fedmoments.em import Shape, class_sums, linear
from fedfew.methods.fedmoments.method import FEDMOMENTS, FedMoments
from fedfew.methods.fedmoments.path import Path
from fedfew.methods.fedmoments.server import as_model
from fedfew.methods.pooled import POOLED, Pooled

ALIKE = 1e9
"""α of clients that all have the same class mix."""
BALANCE = 20
"""Steps that give every class the same share of the images."""


def propagated(x: Tensor, labels: Tensor, classes: int, neighbors: int = 20, spread: float = 0.99) -> Tensor:
    """The classes of all rows of x (N×d), of which the first have ``labels``: (I − αS)⁻¹Y, S the normalised graph."""
    unit = normalize(x - x.mean(0)).float()
    rows, columns, weights = [], [], []
    for start in range(0, len(unit), 1000):
        likeness = unit[start : start + 1000] @ unit.T
        likeness[torch.arange(len(likeness)), torch.arange(start, start + len(likeness))] = 0.0
        best = likeness.topk(neighbors)
        rows.append(np.repeat(np.arange(start, start + len(likeness)), neighbors))
        columns.append(best.indices.flatten().numpy())
        weights.append(best.values.clamp_min(0).pow(3).flatten().double().numpy())
    index = (np.concatenate(rows), np.concatenate(columns))
    graph = csr_array((np.concatenate(weights), index), shape=(len(x), len(x)))
    graph = graph + graph.T
    scale = diags_array(1 / np.sqrt(np.maximum(graph.sum(1), 1e-9)))
    system = eye_array(len(x)) - spread * (scale @ graph @ scale)
    scores = np.zeros((len(x), classes))
    for label in range(classes):
        known = np.zeros(len(x))
        known[: len(labels)] = (labels == label).numpy()
        scores[:, label] = cg(system, known / max(known.sum(), 1), rtol=1e-6, maxiter=200)[0]
    scores = np.maximum(scores, 1e-300)
    for _ in range(BALANCE):
        scores /= scores.sum(1, keepdims=True)
        scores /= scores.mean(0)
    result = torch.from_numpy(scores.argmax(1))
    result[: len(labels)] = labels
    return result


@dataclass(frozen=True)
class Propagated(Pooled):
    """Label propagation on pooled features; no true label of a client is used."""

    neighbors: Annotated[Count, Doc("neighbors of an image in the graph")] = 20
    spread: Annotated[Fraction, Doc("α: how much of a label comes from neighbors")] = 0.99
    ridge: Annotated[Positive, Doc("variance added to every feature, in units of the mean variance")] = 1.0

    def train(self, state: ServerState, start: Vector, lot: int, site: ServerSite, rng: torch.Generator) -> ServerState:
        """Gaussian classes with one covariance on the propagated labels."""
        assert site.pool is not None  # its entry pools
        own, pool = features(site.labeled.samples), features(site.pool.samples)
        x = torch.cat([own, pool])
        labels = propagated(x, site.labeled.labels, site.classes, self.neighbors, self.spread)
        centre = x.mean(0)
        x = x - centre
        counts = torch.bincount(labels, minlength=site.classes).double()
        means = class_sums(x, labels, site.classes) / counts[:, None].clamp_min(1)
        within = (x.T @ x - (counts[:, None] * means).T @ means) / len(x)
        ridge = self.ridge * float(within.diagonal().mean()) * torch.eye(len(within), dtype=within.dtype)
        weight, bias = linear(means, within + ridge)
        return replace(state, sigma=as_model(site, weight, bias - centre @ weight))


@dataclass(frozen=True)
class Outage(FedMoments):
    """fedmoments with clients that stop answering in the middle of the run."""

    away: Annotated[Fraction, Doc("share of the clients that are gone")] = 0.6
    since: Annotated[Natural, Doc("steps of EM before they are gone")] = 2

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        gone = 7 * site.client % 10 < 10 * self.away  # of every ten clients exactly this share
        if gone and "step" in payload and float(payload["step"]) >= self.since:
            return Trained({})  # refused by the gate: for the server as if nothing had come
        return super().train_client(payload, site, rng)


@dataclass(frozen=True)
class Ablated(FedMoments):
    """fedmoments without some of its parts."""

    class_mix: Annotated[bool, Doc("whether a client estimates its own class mix")] = True
    client_spread: Annotated[bool, Doc("whether the clients' spread says in which directions classes differ")] = True

    def broadcast(self, state: ServerState, client: int) -> Payload:
        payload = super().broadcast(state, client)
        if not self.class_mix and "alpha" in payload:
            payload = {**payload, "alpha": torch.full_like(payload["alpha"], ALIKE)}
        return payload

    def _paths(self, extra: Mapping[str, Tensor], site: ServerSite, shape: Shape) -> list[Path]:
        paths = super()._paths(extra, site, shape)
        if self.client_spread:
            return paths
        with patch.object(prior, "noise_edge", lambda *_: float("inf")):  # no direction stands out
            blind = super()._paths(extra, site, shape)
        return [replace(b, prior=replace(b.prior, alpha=p.prior.alpha)) for b, p in zip(blind, paths, strict=True)]


ABLATED = replace(FEDMOMENTS, method=Ablated)
PROPAGATION = replace(POOLED, method=Propagated)
OUTAGE = replace(FEDMOMENTS, method=Outage)
