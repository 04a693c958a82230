"""Named random streams: found by seed and path alone, deaf to the global state and to each other."""

import hashlib

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.core.streams import numpy_stream, stream

parts = st.one_of(st.text(max_size=4), st.sampled_from(["client", "a/b", "a", "b", "%2F", "/"]), st.integers(0, 99))
paths = st.tuples(st.integers(0, 99), st.lists(parts, max_size=4))


def draws(generator: torch.Generator) -> list[int]:
    return torch.randint(2**62, (4,), generator=generator).tolist()


@settings(max_examples=100, deadline=None)
@given(paths, paths)
def test_equal_paths_give_equal_draws_and_different_paths_different_ones(
    one: tuple[int, list[str | int]], other: tuple[int, list[str | int]]
) -> None:
    same = one[0] == other[0] and [str(p) for p in one[1]] == [str(p) for p in other[1]]
    assert (draws(stream(one[0], *one[1])) == draws(stream(other[0], *other[1]))) == same
    bits = [numpy_stream(seed, *path).integers(2**62, size=4).tolist() for seed, path in (one, other)]
    assert (bits[0] == bits[1]) == same
    assert draws(stream(one[0], *one[1])) == draws(stream(one[0], *one[1]))


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draws(stream(0, "client", 3, 7))
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(2)
    torch.rand(5)
    np.random.default_rng(3)
    assert draws(stream(0, "client", 3, 7)) == first


def test_the_seed_is_the_hash_of_the_path() -> None:
    text = b"7/client/3/12"
    seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    assert draws(stream(7, "client", 3, 12)) == draws(torch.Generator().manual_seed(seed))


def test_a_stream_does_not_depend_on_what_was_drawn_from_another() -> None:
    alone = draws(stream(0, "b"))
    neighbour = stream(0, "a")
    draws(neighbour)
    assert draws(stream(0, "b")) == alone
