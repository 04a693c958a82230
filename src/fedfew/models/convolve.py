"""A 3×3 convolution whose weight gradient on small maps with many channels is nine matrix products.

Where maps are 4×4 or 8×8 and channels are many, as in the last layers of ResNet-9 at width 64, oneDNN computes that
gradient at a third to a half of a core's peak; a matrix product for each of the nine taps comes near the peak. Forward
pass and input gradient are oneDNN's everywhere. On another device and without gradients it is a plain layer.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_input

FEW_PIXELS = 64
MANY_CHANNELS = 256


class Conv3x3(nn.Conv2d):
    """3×3, stride 1, padding 1, without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        self._many = min(inputs, outputs) >= MANY_CHANNELS

    def forward(self, input: Tensor) -> Tensor:
        if self._many and torch.is_grad_enabled() and input.device.type == "cpu" and _fits(input):
            out: Tensor = _ByTaps.apply(input, self.weight)
            return out
        return super().forward(input)


def _fits(x: Tensor) -> bool:
    return x.shape[2] * x.shape[3] <= FEW_PIXELS and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _ByTaps(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return conv2d(x, weight, padding=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = conv2d_input(list(x.shape), weight, gradient, padding=1)
        if ctx.needs_input_grad[1]:
            of_weight = weight_gradient(x, gradient)
        return of_x, of_weight


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """∂/∂W of Σ gradient · conv(x, W): for each tap, the products of what it saw with what came out, summed."""
    height, width = x.shape[2:]
    seen = pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    came = gradient.permute(0, 2, 3, 1).flatten(0, 2).T
    taps = [
        came @ seen[:, i : i + height, j : j + width].flatten(0, 2) for i in range(3) for j in range(3)
    ]  # outputs × inputs each
    of_weight: Tensor = torch.stack(taps, 1).unflatten(1, (3, 3)).permute(0, 3, 1, 2)
    return of_weight
