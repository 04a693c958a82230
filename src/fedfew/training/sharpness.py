"""Adaptive sharpness: the ascent step that raises the loss most, measured in units of each weight (ASAM).

J. Kwon, J. Kim, H. Park, I. K. Choi: ASAM: Adaptive Sharpness-Aware Minimization. ICML 2021.

    ε = ρ T² g / ‖T g‖,   T = |w| + 0.01 for weights, 1 for biases
"""

import torch

from fedfew.core.layout import Vector
from fedfew.core.network import Network

FLOOR = 0.01  # so that a weight of zero can be moved too


def ascent_step(network: Network, rho: float) -> Vector:
    """ε for the gradient that the network holds now, on its trainable part."""
    layout = network.layout
    n = layout.trainable
    weights = frozenset(name for name in layout.names if name.rpartition(".")[2] == "weight")
    scale = torch.where(layout.select(network.vector, weights)[:n], network.vector[:n].abs() + FLOOR, 1.0)
    scaled = scale * network.gradient[:n]
    step: Vector = rho * scale * scaled / (scaled.norm() + 1e-16)
    return step
