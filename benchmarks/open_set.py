"""Images of no class among the clients' images: what they cost.

    fedfew run few-labels --set dataset.name=benchmarks.open_set:animals --set dataset.share=0.2

CIFAR-10's six animals are the classes; of the clients' images a share are vehicles, which belong to none.
"""

import numpy as np
import torch

from fedfew.core.types import LabeledSet
from fedfew.data import DATASETS, Dataset, SiteImages, make_partition

ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")


def animals(
    *, share: float = 0.2, sites: int = 100, images: int = 6600, labels: int = 24, mu: float = 0.1, draw: int = 0
) -> Dataset:
    """Sites with animals by Dirichlet(μ), and a share of vehicles at each of them; ``labels`` stay at the server."""
    whole = DATASETS["cifar10"]()
    index = {whole.classes.index(name): label for label, name in enumerate(ANIMALS)}
    rng = np.random.default_rng(draw)
    known = np.isin(whole.train.labels.numpy(), list(index))
    order = rng.permutation(np.flatnonzero(known))
    classes = torch.tensor([index.get(label, -1) for label in range(len(whole.classes))])
    truth = classes[whole.train.labels]
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
    places = torch.from_numpy(np.concatenate(chosen))
    names = tuple(f"site {site}" for site in range(sites))
    clients = SiteImages(names, whole.train.images[places], np.array(offsets, np.int64), truth[places])
    tested = classes[whole.test.labels]
    test = LabeledSet(whole.test.images[tested >= 0], tested[tested >= 0])
    return Dataset(
        "animals", LabeledSet(whole.train.images[server], truth[server]), test, ANIMALS, flips=True, sites=clients
    )
