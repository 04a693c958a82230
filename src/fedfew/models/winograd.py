"""3×3 convolutions faster than oneDNN's on a CPU: Winograd's in float32, and in bfloat16 one product for small maps.

Winograd's F(4×4, 3×3) takes a quarter of the multiplications, forward and backward.

An output tile of 4×4 pixels takes 16 · 9 products for each pair of channels. It is the product of two polynomials in
two variables, which its values at 6 · 6 points determine: the input tile of 6×6 and the kernel are transformed to
values at those points (B and G below), multiplied there, one product for each point, and transformed back (A):

    Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A        36 products instead of 144

Summed over channels, each of the 36 points is one matrix product of (tiles × inputs) with (inputs × outputs). What
the transforms cost does not grow with the number of channels on the other side, so it pays with many channels. The
input's gradient is such a convolution again; the weights' gradient is the same maps transposed. With the points 0, ±1,
±2 and ∞ the result differs from the direct sum by about 10⁻⁵ of its largest value.

S. Winograd 1980; A. Lavin, S. Gray 2016, Fast algorithms for convolutional neural networks.

In bfloat16, AMX multiplies tiles of 16 rows. A convolution fills them with pixels of one line, of which a small map has
few, so that most of a tile is empty: 512 channels at 4×4 pixels run below 5 % of the peak. For the weights' gradient
the map is therefore gathered into a matrix first (a row for each pixel, its nine neighbours side by side): the same sum
is then a product that fills every tile, five to eight times as fast. Forward and towards the input, gathering costs
more than it saves.
"""

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad
from torch.nn.grad import conv2d_input, conv2d_weight

TILE = 4
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)
"""The sixth is ∞, the leading coefficient. Points far apart cost digits, points close together too."""
MANY_CHANNELS = 64
"""With fewer, the transforms cost what the products save: of 16 to 512 channels measured, 32 → 64 breaks even."""
AT_A_TIME = 128
"""Tiles processed at a time: enough rows for a matrix product, and few enough to stay in a core's cache."""
SMALL = 8
"""The largest side of a map for which gathering pays: of 4, 8, 16 and 32 measured, 8 gains a third and 16 loses."""


def _maps() -> tuple[Tensor, Tensor, Tensor]:
    """Bᵀ (6×6), G (6×3) and Aᵀ (4×6) for these points.

    Aᵀ and G evaluate polynomials with 4 and 3 coefficients at the points (G divided by ∏ (p − p') over the others,
    Lagrange's denominator); a row of Bᵀ has the coefficients of ∏ (x − p') over the other points, the last over all.
    """
    p = torch.tensor(POINTS, dtype=torch.float64)
    infinite = torch.zeros(1, 6, dtype=torch.float64)
    infinite[0, 5] = 1.0
    evaluate = torch.cat([p[:, None] ** torch.arange(6), infinite])
    denominators = [torch.prod(p[i] - torch.cat([p[:i], p[i + 1 :]])) for i in range(5)]
    kernel = evaluate[:, :3].clone()
    kernel[:5] /= torch.stack(denominators)[:, None]
    kernel[5] = torch.tensor([0.0, 0.0, 1.0])
    tile = torch.stack([_coefficients(torch.cat([p[:i], p[i + 1 :]])) for i in range(5)] + [_coefficients(p)])
    output = evaluate[:, :4].T.clone()
    output[:, 5] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    return tile.float(), kernel.float(), output.float().contiguous()


def _coefficients(roots: Tensor) -> Tensor:
    """The coefficients of ∏ (x − root), lowest power first, padded to six."""
    coefficients = torch.ones(1, dtype=torch.float64)
    for root in roots:
        coefficients = pad(coefficients, (1, 0)) - root * pad(coefficients, (0, 1))
    return pad(coefficients, (0, 6 - len(coefficients)))


B_T, G, A_T = _maps()
A = A_T.T.contiguous()
G_2D = torch.kron(G, G)
ROTATED_2D = torch.kron(G.flip(1), G.flip(1))
"""Both transform kernels in one product, in their memory order; the second also rotates them by 180°."""


class Conv3x3(nn.Conv2d):
    """3×3, stride 1, padding 1, without bias; the plain layer where neither Winograd nor AMX is faster."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        self._many = min(inputs, outputs) >= MANY_CHANNELS

    def forward(self, input: Tensor) -> Tensor:
        if self._many and _fits(input):
            out: Tensor = Winograd.apply(input, self.weight)
            return out
        if self._many and _gathers(input):
            half: Tensor = SmallMaps.apply(input.bfloat16(), self.weight.bfloat16())
            return half
        return super().forward(input)


def plain(module: nn.Module) -> None:
    """Make every layer of a module the plain one from here on: the form that files hold and are compared with."""
    for layer in module.modules():
        if isinstance(layer, Conv3x3):
            layer._many = False


def _fits(x: Tensor) -> bool:
    """Whole tiles of float32 on a CPU; exported or compiled models use the plain layer, for any number of images."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.shape[2] % TILE == 0
        and x.shape[3] % TILE == 0
        and len(x) > 0
        and not torch.is_autocast_enabled("cpu")
    )


class Winograd(torch.autograd.Function):
    """conv2d(x, weight, padding=1) for maps whose sides are multiples of four."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return convolve(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is needed: torch computes it
            of_x = conv2d_input(list(x.shape), weight, gradient, padding=1)
            return of_x, conv2d_weight(x, list(weight.shape), gradient, padding=1)
        of_x = input_gradient(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight = weight_gradient(x, gradient) if ctx.needs_input_grad[1] else None
        return of_x, of_weight


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """conv2d(x, weight, padding=1), channels last in memory."""
    return _pointwise(x, _turned(G_2D, weight).transpose(1, 2))


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """∂/∂x of Σ gradient · conv(x, W): the convolution with the kernels rotated, from outputs to inputs."""
    return _pointwise(gradient, _turned(ROTATED_2D, weight))


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """∂/∂W of Σ gradient · conv(x, W)."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    few = _few(x)
    total = x.new_zeros(outputs, 36, inputs)
    by_point = total.transpose(0, 1)
    for seen, came in zip(_last(x).split(few), _last(gradient).split(few), strict=True):
        by_point.baddbmm_(_turn(A, _blocks(came)).flatten(0, 1).transpose(1, 2), _turn(B_T, _tiles(seen)).flatten(0, 1))
    return (G_2D.T @ total).view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)


def _turned(by: Tensor, weight: Tensor) -> Tensor:
    """G g Gᵀ: 36 × outputs × inputs."""
    return (by @ _last(weight).flatten(1, 2)).transpose(0, 1)


def _pointwise(x: Tensor, kernels: Tensor) -> Tensor:
    """Transform tiles, multiply with the kernels (36 × inputs × outputs), transform back, a few images at a time."""
    images, _, height, width = x.shape
    outputs = kernels.shape[-1]
    result = torch.empty(images, outputs, height, width, dtype=x.dtype, memory_format=torch.channels_last)
    few = _few(x)
    for seen, target in zip(_last(x).split(few), _last(result).split(few), strict=True):
        points = torch.bmm(_turn(B_T, _tiles(seen)).flatten(0, 1), kernels)
        blocks = _turn(A_T, points.unflatten(0, (TILE + 2, TILE + 2)))
        tiles = blocks.view(TILE, TILE, len(target), height // TILE, width // TILE, outputs)
        target.view(len(target), height // TILE, TILE, width // TILE, TILE, outputs).copy_(
            tiles.permute(2, 3, 0, 4, 1, 5)
        )
    return result


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _few(x: Tensor) -> int:
    """How many images are processed at a time."""
    return max(1, AT_A_TIME * TILE**2 // (x.shape[2] * x.shape[3]))


def _turn(by: Tensor, blocks: Tensor) -> Tensor:
    """by · d · byᵀ for every d = blocks[:, :, tile, channel]."""
    rows, columns, *rest = blocks.shape
    first = (by @ blocks.reshape(rows, -1)).view(len(by), columns, -1)
    return (by @ first).view(len(by), len(by), *rest)


def _tiles(x: Tensor) -> Tensor:
    """The input tiles, which overlap by two: 6 × 6 × tiles × channels."""
    cut = pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, TILE + 2, TILE).unfold(2, TILE + 2, TILE)
    return cut.permute(4, 5, 0, 1, 2, 3).flatten(2, 4)


def _blocks(y: Tensor) -> Tensor:
    """The output tiles, side by side: 4 × 4 × tiles × channels."""
    return y.unfold(1, TILE, TILE).unfold(2, TILE, TILE).permute(4, 5, 0, 1, 2, 3).flatten(2, 4)


def _gathers(x: Tensor) -> bool:
    """Whether, in an autocast, the maps are small, in bfloat16 and on a CPU with AMX."""
    return (
        not torch.compiler.is_compiling()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") is torch.bfloat16
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
        return of_x, gathered_gradient(x, gradient)


def gathered_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """∂/∂W of Σ gradient · conv(x, W)."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    neighbours = pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
    gathered = neighbours.permute(0, 1, 2, 4, 5, 3).reshape(-1, 9 * inputs)
    product = gradient.permute(0, 2, 3, 1).reshape(-1, outputs).T @ gathered
    return product.view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)
