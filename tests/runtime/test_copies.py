"""What a round copies and allocates, counted: a guard against slow code that no clock is needed for."""

from collections import Counter
from contextlib import closing
from functools import cache
from typing import Any

import pytest
import torch
from tests.runtime.tiny_run import play, tiny
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedfew.config.parts import assemble, local_fleet

LIKE_THE_REPLY = 6
"""Vectors made for each client: the reply itself, its change for the gate's norm, and for the record of the round its
change again and three in torch's cosine with the server's step."""
FOR_THE_ROUND = 11
"""σ and its copy out of the network (2: ω_0 too, as a run begins); αψ + βσ + γω (5); the sum in float64 and in float32
(2); σ − ω and ω′ − ω for the record (2)."""


class VectorCount(TorchDispatchMode):
    """Counts the tensors of a model's length that are made anew, and the bytes copied into ones that were there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.made: Counter[str] = Counter()
        self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if all(result.alias_info is None for result in func._schema.returns):
            self.made[str(func)] += sum(isinstance(t, Tensor) and t.numel() == self.size for t in tree_leaves(out))
        if func.overloadpacket is torch.ops.aten.copy_ and args[0].numel() == self.size:
            self.copied += args[0].numel() * args[0].element_size()
        return out


@cache
def count(kind: str, m: int) -> tuple[VectorCount, int]:
    """One round of FedMix with m clients, counted in the server's process; the model's bytes."""
    parts = assemble(tiny(fleet__kind=kind, fleet__workers=1, clients=12, participation=m / 12, method__threshold=0.1))
    with closing(local_fleet(parts)) as fleet:
        counting = VectorCount(parts.network.layout.size)
        with counting:
            play(parts, fleet, 1)
    return counting, 4 * parts.network.layout.size


@pytest.mark.parametrize("kind", ["inline", "pool"])
def test_vectors_made_in_a_round(kind: str) -> None:
    """Training makes none, on either side: it works in place. With inline clients that is counted here as well."""
    for m in (2, 5):
        made = count(kind, m)[0].made
        assert sum(made.values()) <= FOR_THE_ROUND + LIKE_THE_REPLY * m, (m, made)


def test_bytes_copied_in_a_round() -> None:
    """Into the network ω before the server trains, ω again and the clients' ψ to score them, and for each client ω.

    With a pool ω and σ go into shared memory, once for all clients, and ω and ψ to whoever scores them. The screen
    loads ω once, and a quarter of every client's way.
    """
    for m in (2, 5):
        counting, vector = count("inline", m)
        assert counting.copied == (3 + m + 1 + m) * vector
        counting, vector = count("pool", m)
        assert counting.copied == (5 + 1 + m) * vector
        assert counting.made["aten.clone.default"] == m, "a reply is copied out of shared memory once"
