"""The convolution with its own weight gradient: the same numbers as torch's, in every way a network is used."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.grad import conv2d_weight

from fedfew.models.convolve import MANY_CHANNELS, Conv3x3, weight_gradient

MANY = MANY_CHANNELS


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def pair(inputs: int, outputs: int) -> tuple[Conv3x3, nn.Conv2d]:
    ours, plain = Conv3x3(inputs, outputs), nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 8), (3, 7), (1, 1)])
def test_the_weight_gradient_is_torchs(height: int, width: int) -> None:
    x, gradient = seeded(3, 5, height, width).double(), seeded(3, 7, height, width).double()
    expected = conv2d_weight(x, [7, 5, 3, 3], gradient, padding=1)
    torch.testing.assert_close(weight_gradient(x, gradient), expected)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_both_gradients_are_those_of_a_plain_layer(layout: torch.memory_format) -> None:
    found = []
    for layer in pair(MANY, MANY):
        layer.weight.data = layer.weight.data.contiguous(memory_format=layout)
        x = seeded(4, MANY, 4, 4).contiguous(memory_format=layout).requires_grad_()
        out = layer(x)
        (out * seeded(*out.shape)).sum().backward()
        assert x.grad is not None
        assert layer.weight.grad is not None
        found.append((out.detach(), x.grad, layer.weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("channels", "size", "own"), [(MANY, 8, True), (MANY, 9, False), (MANY // 2, 4, False)])
def test_large_maps_and_few_channels_stay_with_torch(channels: int, size: int, own: bool) -> None:
    out = Conv3x3(channels, channels)(seeded(1, channels, size, size))
    assert out.grad_fn is not None
    assert ("ByTaps" in out.grad_fn.name()) == own


def test_without_gradients_it_is_a_plain_layer_and_can_be_exported() -> None:
    ours, plain = pair(MANY, MANY)
    x = seeded(2, MANY, 4, 4)
    with torch.no_grad():
        assert torch.equal(ours(x), plain(x))
        program = torch.export.export(ours, (x,))
        torch.export.save(program, io.BytesIO())
    assert "convolution" in str(program.graph) or "conv2d" in str(program.graph)


def test_several_networks_can_be_stacked() -> None:
    layer = Conv3x3(MANY, MANY)
    weights, x = seeded(2, MANY, MANY, 3, 3).requires_grad_(), seeded(2, 3, MANY, 4, 4)

    def one(weight: Tensor, images: Tensor) -> Tensor:
        out: Tensor = functional_call(layer, {"weight": weight}, (images,))
        return out

    stacked = torch.vmap(one)(weights, x)
    (slopes,) = torch.autograd.grad(stacked.square().sum(), weights)
    for k in range(2):
        weight = weights[k].detach().requires_grad_()
        (slope,) = torch.autograd.grad(one(weight, x[k]).square().sum(), weight)
        torch.testing.assert_close(slopes[k], slope, rtol=1e-3, atol=0.5)
