"""AdamW in place on one flat vector: a handful of passes over it, whatever the number of layers.

    m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²
    θ ← (1 − η r λ) θ − η r (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)        r: the entry's rate, 1 if there is none

I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization. ICLR 2019. Its state starts at zero in every round,
as SGD's momentum does: a client that is selected again starts from other weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


@dataclass(eq=False)
class AdamW:
    """The two running means, and the number of steps in them."""

    mean: Tensor
    square: Tensor
    steps: int = 0

    @staticmethod
    def of(weights: Tensor) -> "AdamW":
        return AdamW(torch.zeros_like(weights), torch.zeros_like(weights))

    def step(self, weights: Tensor, gradient: Tensor, lr: float, decay: float, rates: Tensor | None = None) -> None:
        """One step; ``gradient`` is overwritten."""
        self.steps += 1
        self.mean.lerp_(gradient, 1 - BETA_1)
        self.square.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        if decay:
            weights.mul_(1 - lr * decay if rates is None else 1 - lr * decay * rates)
        root = torch.sqrt(self.square, out=gradient).div_((1 - BETA_2**self.steps) ** 0.5).add_(EPSILON)
        size = lr / (1 - BETA_1**self.steps)
        if rates is None:
            weights.addcdiv_(self.mean, root, value=-size)
        else:
            weights.addcmul_(self.mean / root, rates, value=-size)
