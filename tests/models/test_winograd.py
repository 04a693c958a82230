"""The 3×3 convolution after Winograd: the same numbers as torch's, in every way a network is used."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.utils.flop_counter import FlopCounterMode

from fedfew.models.winograd import (
    A_T,
    AT_A_TIME,
    B_T,
    MANY_CHANNELS,
    Conv3x3,
    G,
    convolve,
    input_gradient,
    weight_gradient,
)

MANY = MANY_CHANNELS


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def near(found: Tensor, expected: Tensor) -> bool:
    """Within 10⁻⁴ of the largest value; what tiles lose in digits is about a tenth of that."""
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())


def test_six_products_make_four_outputs_of_three_taps() -> None:
    signal, kernel = torch.tensor([1.0, 2.0, -1.0, 3.0, 0.5, -2.0]), torch.tensor([2.0, -1.0, 0.5])
    direct = torch.stack([signal[i : i + 3] @ kernel for i in range(4)])  # by hand: −0.5, 6.5, −4.75, 4.5
    torch.testing.assert_close(direct, torch.tensor([-0.5, 6.5, -4.75, 4.5]))
    torch.testing.assert_close(A_T @ ((G @ kernel) * (B_T @ signal)), direct)


@pytest.mark.parametrize(("images", "height", "width"), [(1, 4, 4), (3, 8, 4), (AT_A_TIME // 4 + 1, 8, 8), (2, 32, 32)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_output_and_gradients_are_torchs(images: int, height: int, width: int, layout: torch.memory_format) -> None:
    x = seeded(images, 5, height, width).contiguous(memory_format=layout)
    weight = seeded(7, 5, 3, 3).contiguous(memory_format=layout)
    gradient = seeded(images, 7, height, width).contiguous(memory_format=layout)
    assert near(convolve(x, weight), conv2d(x, weight, padding=1))
    assert near(input_gradient(gradient, weight), conv2d_input(list(x.shape), weight, gradient, padding=1))
    assert near(weight_gradient(x, gradient), conv2d_weight(x, list(weight.shape), gradient, padding=1))


def test_a_layer_is_a_plain_layer_forward_and_backward() -> None:
    ours, plain = Conv3x3(MANY, 2 * MANY), nn.Conv2d(MANY, 2 * MANY, 3, padding=1, bias=False)
    plain.load_state_dict(ours.state_dict())
    found = []
    for layer in (ours, plain):
        x = seeded(4, MANY, 8, 8).requires_grad_()
        out = layer(x)
        assert not out._is_view()  # the ReLU that follows works in place
        (out * seeded(*out.shape)).sum().backward()
        assert x.grad is not None
        assert layer.weight.grad is not None
        found.append((out.detach(), x.grad, layer.weight.grad))
    assert all(near(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("channels", "size", "images", "own"),
    [(MANY, 8, 1, True), (MANY, 9, 1, False), (MANY // 2, 8, 1, False), (MANY, 8, 0, False)],
)
def test_few_channels_and_odd_maps_stay_with_torch(channels: int, size: int, images: int, own: bool) -> None:
    out = Conv3x3(channels, channels)(seeded(images, channels, size, size))
    assert out.shape == (images, channels, size, size)
    assert out.grad_fn is not None
    assert ("Winograd" in out.grad_fn.name()) == own


def test_other_precisions_stay_with_torch() -> None:
    layer, x = Conv3x3(MANY, MANY), seeded(1, MANY, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert "Winograd" not in layer(x).grad_fn.name()
    assert "Winograd" not in layer.double()(x.double()).grad_fn.name()


def test_it_takes_less_than_a_third_of_the_arithmetic_where_channels_are_many() -> None:
    layer, x = Conv3x3(512, 512), seeded(32, 512, 4, 4)
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        layer.double()(x.double())
    with FlopCounterMode(display=False) as ours, torch.no_grad():
        layer.float()(x)
    assert ours.get_total_flops() < plain.get_total_flops() / 3


def test_what_is_exported_is_the_plain_convolution_for_any_number_of_images() -> None:
    layer, x = Conv3x3(MANY, MANY), seeded(2, MANY, 4, 4)
    with torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, io.BytesIO())
        assert near(program.module()(seeded(5, MANY, 4, 4)), layer(seeded(5, MANY, 4, 4)))
    assert "conv" in str(program.graph)
    assert "bmm" not in str(program.graph)


def test_gradients_of_gradients_and_single_images_are_torchs() -> None:
    ours, plain = Conv3x3(MANY, MANY), nn.Conv2d(MANY, MANY, 3, padding=1, bias=False)
    plain.load_state_dict(ours.state_dict())
    found = []
    for layer in (ours, plain):
        x = seeded(2, MANY, 4, 4).requires_grad_()
        (slope,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        slope.square().sum().backward()
        assert x.grad is not None
        found.append(x.grad)
    assert near(*found)
    with torch.inference_mode():
        assert near(ours(seeded(MANY, 8, 8)), plain(seeded(MANY, 8, 8)))
        assert near(ours(seeded(1, MANY, 8, 8)), plain(seeded(1, MANY, 8, 8)))
