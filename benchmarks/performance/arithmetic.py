"""The arithmetic of a FedMix client, counted on the network, forward and backward, in FLOP (a product and a sum are
two)."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """FLOP for one image."""

    forward: int
    both: int
    """Forward and backward; less than three times forward, because the first layer needs no gradient of its input."""

    def shared(self, views: int, coverage: float) -> float:
        """fedfew: two views with gradient, which also vote; the others vote; cross-entropy on confident images only."""
        return 2 * self.both + (views - 2) * self.forward + coverage * self.both

    def naive(self, views: int) -> float:
        """Plain code: all views vote, two views with gradient, cross-entropy on all images."""
        return views * self.forward + 3 * self.both

    def equivalents(self, flops: float) -> float:
        """FLOP in forward passes, where a pass with gradient counts three, as in the paper."""
        return flops / self.forward


def cost(module: nn.Module, channels: int, size: int, dtype: torch.dtype = torch.float64) -> Cost:
    """Counted on one image: in float64 for direct convolutions, in float32 for fedfew's (Winograd)."""
    image, module = torch.zeros(1, channels, size, size, dtype=dtype), deepcopy(module).to(dtype)
    counts = []
    for backward in (False, True):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
            logits = module(image)
            if backward:
                logits.sum().backward()
        counts.append(int(counter.get_total_flops()))
    return Cost(*counts)
