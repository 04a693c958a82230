"""Names of ImageNet's classes: which of the 1,000 have a name, or are kinds of what has it (a robin is a bird)."""

from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

import torch
from torch import Tensor


@lru_cache(maxsize=1)
def members() -> dict[str, set[int]]:
    """The classes of each name, by WordNet's hierarchy (``imagenet.txt``)."""
    numbers_of: dict[str, set[int]] = {}
    for line in (resources.files(__package__) / "imagenet.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        names, _, ranges = line.rpartition(":")
        numbers = {n for span in ranges.split() for n in _span(*map(int, span.split("-")))}
        for name in names.split(", "):
            numbers_of.setdefault(name.lower(), set()).update(numbers)
    return numbers_of


def _span(first: int, last: int | None = None) -> range:
    return range(first, (first if last is None else last) + 1)


def classes_named(name: str) -> list[int]:
    """The classes with this name, which may be a plural; none if nothing has it."""
    plain = " ".join(name.lower().replace("_", " ").split())
    return sorted(members().get(plain) or members().get(plain.removesuffix("s")) or ())


def named_weights(classifier: Tensor, names: Sequence[str]) -> Tensor | None:
    """The mean weights of the classes with each name (C×d), about the mean of all; 0 for a name that nothing has.

    None if fewer than two have one: then nothing tells classes apart.
    """
    of_name = [classes_named(name) for name in names]
    known = torch.tensor([bool(classes) for classes in of_name])
    if int(known.sum()) < 2:
        return None
    weights = torch.stack([classifier[classes].mean(0) if classes else classifier[0] for classes in of_name])
    return (weights - weights[known].mean(0)) * known[:, None]
