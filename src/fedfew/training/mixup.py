"""MixUp: linear interpolation between images and between their labels (H. Zhang et al., ICLR 2018)."""

import numpy as np
import torch
from torch import Tensor


def beta_draw(a: float, count: int, rng: torch.Generator) -> Tensor:
    """``count`` draws from Beta(a, a), seeded from the given generator."""
    seed = int(torch.randint(2**63 - 1, (), generator=rng))
    return torch.from_numpy(np.random.default_rng(seed).beta(a, a, count).astype(np.float32))
