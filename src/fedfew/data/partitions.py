"""Partitions of the unlabeled images among the clients: every image exactly once, with class and size skew."""

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Count, Doc, NonNegative, Positive, settings_of
from fedfew.core.streams import numpy_stream
from fedfew.data import PARTITIONS
from fedfew.data.shares import Indices, Partition, VirtualPartition, from_lists, from_owners, grouped, ranks, starts

Skew = Annotated[NonNegative, Doc("σ of the log-normal client sizes; 0: all sizes equal, give or take one")]
Empty = Annotated[bool, Doc("whether clients may be left without images")]
Mu = Annotated[Positive, Doc("μ of the Dirichlet: near 0 one class per client, large: all clients alike")]


def iid(
    labels: Indices, clients: int, rng: np.random.Generator, *, skew: Skew = 0.0, empty: Empty = False
) -> Partition:
    """All clients alike: with equal sizes each gets the same number of each class, give or take one."""
    _check(len(labels), clients, skew, empty)
    if skew == 0:
        shuffled = rng.permutation(len(labels))
        by_class = shuffled[grouped(labels[shuffled])]
        owner = np.empty(len(labels), np.int64)
        owner[by_class] = rng.permutation(clients)[np.arange(len(labels)) % clients]
        return from_owners(owner, clients)
    sizes = _sizes(len(labels), clients, rng, skew, empty)
    return Partition(rng.permutation(len(labels)), np.append(0, np.cumsum(sizes)))


def dirichlet(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    *,
    mu: Mu = 0.1,
    skew: Skew = 0.0,
    largest: Annotated[NonNegative, Doc("most images of a client, in units of the mean, from 1; 0: no limit")] = 0.0,
    empty: Empty = False,
) -> Partition:
    """The paper's: each client draws class shares ~ Dir(μ), and takes what is left when its classes are used up."""
    _check(len(labels), clients, skew, empty, mu)
    if 0 < largest < 1:
        raise FedfewError("E103", "partition.largest", f"{largest} is less than the mean, 1", "Use 0, or 1 and more")
    sizes = _sizes(len(labels), clients, rng, skew, empty, largest)
    stock = np.bincount(labels)
    active = np.flatnonzero(sizes)  # so a million clients of which few hold images cost what the few cost
    shares = _dirichlet(rng, mu, len(stock), len(active))
    owner = np.repeat(np.arange(len(active)), sizes[active])
    wanted = _fill(owner, shares, stock, rng)
    shuffled = rng.permutation(len(labels))
    order = np.empty(len(labels), np.int64)
    order[grouped(wanted)] = shuffled[grouped(labels[shuffled])]
    return Partition(order, np.append(0, np.cumsum(sizes)))


def dirichlet_by_class(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    *,
    mu: Mu = 0.1,
    skew: Annotated[
        NonNegative, Doc("σ of a log-normal factor on the clients' shares; sizes vary without it too")
    ] = 0.0,
    empty: Empty = False,
) -> Partition:
    """The usual Dirichlet partition: each class is divided among the clients by shares ~ Dir(μ), so sizes vary too."""
    _check(len(labels), clients, skew, empty, mu)
    weights = _weights(clients, rng, skew)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[grouped(labels[shuffled])]
    owner = np.empty(len(labels), np.int64)
    bounds = starts(labels, 0)
    for first, last in pairwise(bounds):
        shares = _dirichlet(rng, mu, clients, 1)[0] * weights
        cuts = np.cumsum(shares)
        points = (np.arange(last - first) + 0.5) * (cuts[-1] / max(last - first, 1))
        owner[by_class[first:last]] = np.minimum(np.searchsorted(cuts, points, side="right"), clients - 1)
    return from_owners(owner if empty else _one_each(owner, clients, rng), clients)


def shards(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    *,
    per_client: Annotated[Count, Doc("shards of label-sorted images that a client gets")] = 2,
    skew: Skew = 0.0,
    empty: Empty = False,
) -> Partition:
    """McMahan's: images sorted by label and cut into shards; a client gets a few, and so about as many classes."""
    _check(len(labels), clients, skew, empty)
    if per_client < 1:
        raise FedfewError("E103", "partition.per_client", f"{per_client} is not at least 1")
    sizes = _sizes(len(labels), clients, rng, skew, empty)
    active = np.flatnonzero(sizes)
    pieces = min(per_client, int(sizes.max(initial=1)))
    lengths = sizes[active, None] // pieces + (np.arange(pieces) < sizes[active, None] % pieces)
    turn = rng.permutation(lengths.size)
    shuffled = rng.permutation(len(labels))
    owner = np.empty(len(labels), np.int64)
    owner[shuffled[grouped(labels[shuffled])]] = np.repeat(np.repeat(active, pieces)[turn], lengths.ravel()[turn])
    return from_owners(owner, clients)


def virtual(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    *,
    per_client: Annotated[Count, Doc("images each client holds; clients share images")] = 100,
    mu: Mu = 0.1,
) -> VirtualPartition:
    """Clients whose images follow from the seed and their number: any number, with a cost only for those selected."""
    _check(len(labels), 1, 0.0, empty=False, mu=mu)
    if per_client > len(labels):
        message = f"{per_client:,} images, but there are {len(labels):,} in all"
        raise FedfewError("E108", "partition.per_client", message)
    return VirtualPartition(clients, int(rng.integers(2**62)), per_client, mu, labels)


def by_user(labels: Indices, clients: int, rng: np.random.Generator, *, users: Indices | None = None) -> Partition:
    """A user's images stay together at one client; with more users than clients some share one, at random."""
    if users is None:
        message = "the dataset does not say which user each image belongs to"
        raise FedfewError("E113", "partition.kind", message, "Use another partition, or give the dataset `users`")
    _, owner = np.unique(users, return_inverse=True)
    people = int(owner.max(initial=-1)) + 1
    if clients > people:
        raise FedfewError("E108", "clients", f"{clients:,} clients, but the images come from {people:,} users")
    return from_owners(rng.permutation(np.arange(people) % clients)[owner], clients)


def flower(
    labels: Indices,
    clients: int,
    rng: np.random.Generator,
    *,
    partitioner: Annotated[str, Doc("a class of flwr_datasets.partitioner, e.g. PathologicalPartitioner")] = (
        "DirichletPartitioner"
    ),
    arguments: Annotated[str, Doc("its further arguments, as JSON")] = "{}",
    users: Indices | None = None,
) -> Partition:
    """A partitioner of the package flwr-datasets; it sees the columns label, user and index."""
    from fedfew.core.extras import import_optional  # noqa: PLC0415 - few runs need a package of others

    partitioners = import_optional("flwr_datasets.partitioner", "flwr-datasets", "partition flower")
    datasets = import_optional("datasets", "fedfew[data]", "partition flower")
    kind = getattr(partitioners, partitioner, None)
    if kind is None:
        known = ", ".join(name for name in dir(partitioners) if name.endswith("Partitioner"))
        raise FedfewError("E103", "partition.partitioner", f"no partitioner {partitioner!r}; there are {known}")
    columns = {"label": labels, "index": np.arange(len(labels))} | ({} if users is None else {"user": users})
    settings = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
    try:
        settings = {key: value for key, value in settings.items() if key in signature(kind).parameters}
        made = kind(**settings | json.loads(arguments))
        made.dataset = datasets.Dataset.from_dict(columns)
        shares = [np.asarray(made.load_partition(k)["index"], np.int64) for k in range(made.num_partitions)]
    except Exception as error:  # the package, or an argument that it does not take, may fail in any way
        why = f"{partitioner} failed: {type(error).__name__}: {error}"
        raise FedfewError("E115", "partition.arguments", why) from error
    return from_lists(shares, len(labels), clients)


Deal = Callable[..., Partition | VirtualPartition | Sequence[ArrayLike]]
"""A user's function that assigns images to clients: ``deal(labels, clients, rng, **options)``."""


def make_partition(
    labels: ArrayLike,
    clients: int,
    kind: str | Deal,
    seed: int,
    options: Mapping[str, Any] | None = None,
    users: Indices | None = None,
) -> Partition | VirtualPartition:
    """The partition that a config names; equal arguments give equal partitions.

    ``users`` holds the user of each image; a function with a parameter of that name gets it.
    """
    if isinstance(kind, str) and kind not in PARTITIONS:
        raise FedfewError("E105", "partition.kind", f"no partition {kind!r}; there are {', '.join(PARTITIONS)}")
    deal: Deal = PARTITIONS[kind] if isinstance(kind, str) else kind
    classes, settings, known = _classes(labels), dict(options or {}), signature(deal).parameters
    for name in settings:
        if isinstance(kind, str) and name not in known:
            only = ", ".join(settings_of(deal))
            raise FedfewError("E104", f"partition.{name}", f"{kind} has no such option, only {only}")
    if "users" in known:
        settings |= {"users": users}
    made = deal(classes, clients, numpy_stream(seed, "partition"), **settings)
    return made if isinstance(made, Partition | VirtualPartition) else from_lists(made, len(classes), clients)


def _classes(labels: ArrayLike) -> Indices:
    classes = np.asarray(labels)
    if classes.ndim != 1 or (classes.size and (not np.issubdtype(classes.dtype, np.integer) or classes.min() < 0)):
        raise FedfewError("E103", "labels", "the classes of the images are not a list of whole numbers from 0")
    return classes.astype(np.int64)


def partition(labels: ArrayLike, clients: int, kind: str = "dirichlet", seed: int = 0, **options: Any) -> list[Indices]:
    """Partition images with these labels among clients; returns the indices of each client's images."""
    dealt = make_partition(labels, clients, kind, seed, options)
    return [dealt.of(client) for client in range(dealt.clients)]


def _check(images: int, clients: int, skew: float, empty: bool, mu: float = 1.0) -> None:
    if clients < 1:
        raise FedfewError("E103", "clients", f"{clients} is not at least 1")
    if not 0 <= skew < np.inf:
        raise FedfewError("E103", "partition.skew", f"{skew} is not a number from 0")
    if not 0 < mu < np.inf:
        raise FedfewError("E103", "partition.mu", f"{mu} is not a number above 0")
    if clients > images and not empty:
        raise FedfewError("E108", "clients", f"{clients:,} clients, but only {images:,} unlabeled images")


def _weights(clients: int, rng: np.random.Generator, skew: float) -> NDArray[np.float64]:
    """Log-normal weights, the largest 1, so that no σ overflows."""
    logarithms = skew * rng.standard_normal(clients)
    weights: NDArray[np.float64] = np.exp(logarithms - logarithms.max())
    return weights


def _sizes(
    images: int, clients: int, rng: np.random.Generator, skew: float, empty: bool, largest: float = 0.0
) -> Indices:
    """Client sizes proportional to log-normal weights that sum to the images; ties are broken at random.

    Where ``largest`` times the mean is a limit, clients at the limit leave the rest to the others."""
    least = 0 if empty else 1
    weights = _weights(clients, rng, skew)
    exact = weights / weights.sum() * (images - least * clients)
    if largest:
        limit, full = largest * images / clients - least, np.zeros(clients, bool)
        while (over := ~full & (exact > limit)).any() and not (full | over).all():
            full |= over
            rest = images - least * clients - limit * full.sum()
            exact = np.where(full, limit, weights * rest / weights[~full].sum())
    sizes: Indices = np.floor(exact).astype(np.int64)
    lot = np.lexsort((rng.random(clients), sizes - exact))
    sizes[lot[: images - least * clients - int(sizes.sum())]] += 1
    sizes += least
    return sizes


def _dirichlet(rng: np.random.Generator, mu: float, parts: int, rows: int) -> NDArray[np.float64]:
    """Rows ~ Dir(μ). Outside of these bounds a draw overflows, and inside it is one-hot or flat to the last image."""
    return rng.dirichlet(np.full(parts, min(max(mu, 1e-6), 1e9)), rows)


def _fill(owner: Indices, shares: NDArray[np.float64], stock: Indices, rng: np.random.Generator) -> Indices:
    """A class for every place of every client, drawn from its owner's shares, with exactly ``stock`` places per class.

    Each pass either satisfies everyone or uses up a class, so there is at most one pass more than there are classes.
    """
    stock, wanted = stock.copy(), np.empty(len(owner), np.int64)
    waiting = rng.permutation(len(owner))  # in random order, so that who goes without is random
    while len(waiting):
        left = shares * (stock > 0)
        left[left.sum(axis=1) <= 0] = stock / stock.sum()
        cuts = np.cumsum(left, axis=1)
        who = owner[waiting]
        point = rng.random(len(waiting)) * cuts[who, -1]
        draw = np.zeros(len(waiting), np.int64)
        for column in cuts.T[:-1]:
            draw += point >= column[who]
        granted = ranks(draw) < stock[draw]
        wanted[waiting[granted]] = draw[granted]
        stock -= np.bincount(draw[granted], minlength=len(stock))
        waiting = waiting[~granted]
    return wanted


def _one_each(owner: Indices, clients: int, rng: np.random.Generator) -> Indices:
    """Give every client without images one that another can spare: drawn at random, so mostly from the large ones."""
    without = np.flatnonzero(np.bincount(owner, minlength=clients) == 0)
    if not len(without):
        return owner
    spare = np.ones(len(owner), bool)
    spare[np.unique(owner, return_index=True)[1]] = False
    filled = owner.copy()
    filled[rng.choice(np.flatnonzero(spare), len(without), replace=False)] = without
    return filled
