"""A 3×3 convolution in bfloat16 whose weights' gradient is one matrix product: for small maps on a CPU with AMX.

AMX multiplies tiles of 16 rows. A convolution fills them with pixels of one line, of which a small map has few, so
that most of a tile is empty: 512 channels at 4×4 pixels run below 5 % of the peak. Gathered into a matrix first (a row
for each pixel, its nine neighbours side by side), the same sum is a product that fills every tile, five to eight times
as fast. Forward and towards the input, gathering costs more than it saves.
"""

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_input, conv2d_weight

SMALL = 8
"""The largest side of a map for which gathering pays: of 4, 8, 16 and 32 measured, 8 gains a third and 16 loses."""


def gathers(x: Tensor) -> bool:
    """Whether, in an autocast, the maps are small, in bfloat16 and on a CPU with AMX."""
    return (
        torch.get_autocast_dtype("cpu") is torch.bfloat16
        and x.device.type == "cpu"
        and x.dim() == 4
        and max(x.shape[2:]) <= SMALL
        and len(x) > 0
        and torch.is_grad_enabled()
        and has_tiles()
    )


@cache
def has_tiles() -> bool:
    """Whether torch multiplies bfloat16 with AMX here."""
    allowed = "AMX" in os.environ.get("ONEDNN_MAX_CPU_ISA", "AMX").upper()
    return allowed and bool(torch.cpu.get_capabilities().get("amx_bf16", False))


class SmallMaps(torch.autograd.Function):
    """conv2d(x, weight, padding=1), both in bfloat16."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return conv2d(x, weight, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = conv2d_input(list(x.shape), weight, gradient, padding=1) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_x, None
        if torch.is_grad_enabled():  # a second derivative is needed: torch computes it
            return of_x, conv2d_weight(x, list(weight.shape), gradient, padding=1)
        return of_x, weight_gradient(x, gradient)


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """∂/∂W of Σ gradient · conv(x, W)."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    neighbours = pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
    gathered = neighbours.permute(0, 1, 2, 4, 5, 3).reshape(-1, 9 * inputs)
    product = gradient.permute(0, 2, 3, 1).reshape(-1, outputs).T @ gathered
    return product.view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)
