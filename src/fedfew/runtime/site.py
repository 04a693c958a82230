"""A client site, simulated or real: takes one client's samples, trains it, compares its votes with the hidden truth."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError, Refusal, raised_at
from fedfew.core.evaluation import score
from fedfew.core.layout import Payload, Reply, Vector
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet, OwnView, Samples
from fedfew.core.streams import stream
from fedfew.core.types import (
    ClientSite,
    ClientUpdate,
    Fleet,
    LabeledClientSite,
    Method,
    Missing,
    Oracle,
    OracleSite,
    Scores,
    Scoring,
    Trained,
    Transform,
)
from fedfew.runtime.gate import class_names
from fedfew.runtime.wire import Wire

_log = logging.getLogger(__name__)


class Sums(Protocol):
    """A client's part in secure sums (``fedfew.secure``)."""

    def answer(
        self,
        round: int,
        client: int,
        payload: Payload,
        kept: dict[str, Tensor],
        train: Callable[[Payload], tuple[Trained, int]],
    ) -> Reply: ...

    def trains(self, round: int, payload: Payload, kept: dict[str, Tensor]) -> bool: ...


@dataclass(frozen=True, eq=False)
class Sites:
    """Everything a process needs to train any client of a simulation, and to score a model."""

    algorithm: Method
    network: Network
    samples: Samples
    truth: Tensor
    """Their true labels: for the upper bound and for reports. ``train_client`` gets only those of the few samples
    that ``known`` names, if the scenario has labels at clients."""
    share: Callable[[int], NDArray[np.int64]]
    """Which samples a client has."""
    classes: int
    seed: int
    test: LabeledSet
    validation: LabeledSet
    transforms: Sequence[Transform] = ()
    known: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] | None = None
    """Maps a client and the classes of its samples to the positions of those whose labels it holds."""
    own_view: OwnView | None = None
    fewest: int = 0
    """Fewest images behind a sum of a class; set by real sites."""
    memory: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    sums: Sums | None = None
    """Where clients answer with their part of a sum only."""
    secrets: dict[int, dict[str, Tensor]] = field(default_factory=dict, repr=False)
    """What each client keeps between the exchanges of one sum: in memory only, in no checkpoint and no message."""

    @cached_property
    def wire(self) -> Wire:
        """The method's messages as they are sent."""
        return Wire(self.algorithm, self.transforms)

    def trains(self, round: int, client: int, payload: Payload) -> bool:
        """Whether the answer to a message takes training; of the exchanges of a sum, one does."""
        return self.sums is None or self.sums.trains(round, payload, self.secrets.get(client, {}))

    def train(self, round: int, client: int, payload: Payload) -> ClientUpdate | Missing:
        """One client's round. If it fails, only this client's update is lost."""
        rng = stream(self.seed, "client", round, client)
        try:
            index = torch.from_numpy(self.share(client))
            if self.sums is not None:
                kept = self.secrets.setdefault(client, {})
                part = self.sums.answer(
                    round, client, payload, kept, lambda seen: (self._train(client, seen, index, rng), len(index))
                )
                return ClientUpdate(client, part, 0)
            trained = self._train(client, payload, index, rng)
            metrics = trained.metrics | _audit(trained.votes, self.truth.index_select(0, index), self.classes)
        except Exception as error:
            _log.debug("client %d failed in round %d", client, round + 1, exc_info=True)
            refused = isinstance(error, FedfewError) and error.code == Refusal.SUM_REFUSED
            return Missing(client, Refusal.SUM_REFUSED if refused else Refusal.FAILED, raised_at(error))
        examples = len(index) if trained.examples is None else trained.examples
        return ClientUpdate(client, trained.reply, examples, metrics)

    def _train(self, client: int, payload: Payload, index: Tensor, rng: torch.Generator) -> Trained:
        samples = self.samples.take(index)
        if self._oracle is not None:
            labeled = LabeledSet(samples, self.truth[index])
            site = OracleSite(client, self.network, labeled, self.classes)
            return self._oracle.train_with_labels(payload, site, rng)
        memory = dict(self.memory.get(client, {}))
        trained = self.wire.train_client(payload, self._site(client, samples, index, memory), rng)
        self.memory.pop(client, None)  # a client whose training fails keeps what it had
        if memory:
            self.memory[client] = memory
        return trained

    def _site(self, client: int, samples: Samples, index: Tensor, memory: dict[str, Tensor]) -> ClientSite:
        """The site as the client's training sees it."""
        truth = self.truth[index]
        held = torch.from_numpy(self.known(client, truth.numpy())) if self.known else torch.empty(0, dtype=torch.int64)
        site = ClientSite(client, self.network, samples, self.classes, memory, self.own_view, self.fewest)
        if not len(held):
            return site
        return LabeledClientSite(**vars(site), labeled=LabeledSet(samples.take(held), truth[held]))

    @cached_property
    def _oracle(self) -> Oracle | None:
        return self.algorithm if isinstance(self.algorithm, Oracle) else None

    def score(self, omega: Vector, clients: Vector | None = None) -> Scores:
        """Accuracy and loss on the held-out images."""
        return score(self.network, omega, self.test, self.validation, clients)


def _audit(votes: Tensor | None, truth: Tensor, classes: int) -> dict[str, float]:
    """How many pseudo-labels were kept, how many of these are right, and how many each class got."""
    if votes is None:
        return {}
    predicted, actual = votes.numpy(), truth.numpy()  # for a hundred numbers NumPy takes a third of torch's time
    sure = predicted >= 0
    counts = np.bincount(predicted[sure], minlength=classes)
    audit = {"kept": float(counts.sum()), **dict(zip(class_names(classes), counts.astype(float).tolist(), strict=True))}
    if (actual >= 0).all():
        audit["right"] = float(np.count_nonzero(sure & (predicted == actual)))
    return audit


@dataclass(frozen=True, eq=False)
class InlineFleet(Fleet):
    """One client after another in this process."""

    sites: Sites

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        for client, payload in payloads.items():
            yield self.sites.train(round, client, payload)

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        """Computed on request: there is no other process to do it in the meantime."""
        return partial(self.sites.score, omega, clients)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        return self.sites.memory

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        self.sites.memory.clear()
        self.sites.memory.update(memory)
