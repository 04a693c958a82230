"""Datasets that violate what fedmoments assumes: images of no class, and classes that are rare everywhere.

``animals``: six of CIFAR-10's classes, and a share of the sites' images are vehicles, which belong to none.
``long_tailed``: classes fall in size. Both are datasets that a config can name:
``dataset.name=benchmarks.odd_sites:animals``, with ``dataset.share=0.2`` and ``dataset.unlabeled=0``.
"""

import numpy as np
import torch

from fedfew.core.samples import LabeledSet
from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.partitions import make_partition

ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")


def animals(
    *, share: float = 0.2, sites: int = 100, images: int = 6600, labels: int = 24, mu: float = 0.1, draw: int = 0
) -> Dataset:
    """Sites with animals by Dirichlet(μ), and a share of vehicles at each; ``labels`` are the server's."""
    cifar = DATASETS["cifar10"]()
    index = {cifar.classes.index(name): label for label, name in enumerate(ANIMALS)}
    rng = np.random.default_rng(draw)
    known = np.isin(cifar.train.labels.numpy(), list(index))
    order = rng.permutation(np.flatnonzero(known))
    classes = torch.tensor([index.get(label, -1) for label in range(len(cifar.classes))])
    truth = classes[cifar.train.labels]
    per_class = [order[truth[order].numpy() == label][: labels // len(ANIMALS)] for label in range(len(ANIMALS))]
    server = np.concatenate(per_class)
    rest = np.setdiff1d(order, server, assume_unique=True)
    held = rng.permutation(rest)[:images]
    vehicles = rng.permutation(np.flatnonzero(~known))
    dealt = make_partition(truth[held].numpy(), sites, "dirichlet", draw, {"mu": mu})
    chosen, offsets, used = [], [0], 0
    for site in range(sites):
        own = held[dealt.of(site)]
        more = round(len(own) * share / (1 - share))
        chosen += [own, vehicles[used : used + more]]
        used += more
        offsets.append(offsets[-1] + len(own) + more)
    indices = torch.from_numpy(np.concatenate(chosen))
    names = tuple(f"site {site}" for site in range(sites))
    clients = SiteSamples(names, cifar.train.samples.take(indices), np.array(offsets, np.int64), truth[indices])
    tested = classes[cifar.test.labels]
    test = LabeledSet(cifar.test.samples.take(tested >= 0), tested[tested >= 0])
    few = torch.from_numpy(server)
    return Dataset("animals", LabeledSet(cifar.train.samples.take(few), truth[few]), test, ANIMALS, sites=clients)


def long_tailed(*, ratio: float = 10.0, of: str = "cifar10") -> Dataset:
    """A dataset whose training classes fall in size by ``ratio`` from the first to the last; its test set stays."""
    source = DATASETS[of]()
    labels, count = source.train.labels.numpy(), len(source.classes)
    largest = np.bincount(labels, minlength=count).min()
    rng = np.random.default_rng(0)
    kept = [
        rng.permutation(np.flatnonzero(labels == label))[: round(largest * ratio ** (-label / (count - 1)))]
        for label in range(count)
    ]
    train = source.train.take(torch.from_numpy(np.sort(np.concatenate(kept))))
    return Dataset("long-tailed", train, source.test, source.classes)
