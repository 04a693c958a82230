"""Named random streams: every draw in a run comes from a generator found by seed and path, never from global state.

For reproducible results, not for secrets: the seed of a stream is derived from public names, and ``torch.Generator``
keeps only 32 bits of it (seeds s and s + 2³² give equal draws), which can be searched in minutes. What nobody may know,
the noise of differential privacy, comes from a cipher (``transforms/discrete_gaussian.py``).
"""

import hashlib

import numpy as np
import torch


def _seed(seed: int, path: tuple[str | int, ...]) -> int:
    # a slash inside a name is escaped, so that no two paths are one text
    names = (str(part).replace("%", "%25").replace("/", "%2F") for part in path)
    text = "/".join([str(seed), *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def stream(seed: int, *path: str | int) -> torch.Generator:
    """The torch generator of one purpose, e.g. ``stream(seed, "client", t, k)``; equal paths give equal draws."""
    return torch.Generator().manual_seed(_seed(seed, path))


def numpy_stream(seed: int, *path: str | int) -> np.random.Generator:
    """The same for NumPy, where an algorithm needs its distributions (Dirichlet, choice without replacement)."""
    return np.random.default_rng(_seed(seed, path))
