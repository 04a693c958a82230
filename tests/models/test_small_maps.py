"""The weights' gradient as one matrix product: that of torch's convolution, and used only where it pays."""

import pytest
import torch
from torch import nn
from torch.nn.grad import conv2d_weight

from fedfew.models import winograd
from fedfew.models.winograd import MANY_CHANNELS as MANY
from fedfew.models.winograd import Conv3x3, gathered_gradient, has_tiles


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "has_tiles", lambda: True)


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(3, 5, 4, 4), (1, 2, 8, 6), (2, 3, 1, 1), (2, 4, 1, 7)])
def test_the_product_is_torchs_gradient_of_the_weights(shape: tuple[int, ...]) -> None:
    x, gradient = seeded(*shape).double(), seeded(shape[0], 7, *shape[2:]).double()
    expected = conv2d_weight(x, [7, shape[1], 3, 3], gradient, padding=1)
    assert torch.allclose(gathered_gradient(x, gradient), expected, atol=1e-10)


@pytest.mark.usefixtures("amx")
def test_all_three_results_are_those_of_torchs_layer_up_to_bfloat16() -> None:
    ours, plain = Conv3x3(MANY, MANY), nn.Conv2d(MANY, MANY, 3, padding=1, bias=False)
    plain.load_state_dict(ours.state_dict())
    found = []
    for layer in (ours, plain):
        x = seeded(4, MANY, 4, 4).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        assert ("SmallMaps" in out.grad_fn.name()) == (layer is ours)
        (out.float() * seeded(*out.shape)).sum().backward()
        assert x.grad is not None
        assert layer.weight.grad is not None
        assert layer.weight.grad.dtype == torch.float32
        found.append((out.detach(), x.grad, layer.weight.grad))
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() <= 2**-7 * other.abs().max()


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize(
    ("channels", "size", "images", "own"),
    [(MANY, 8, 2, True), (MANY, 16, 2, False), (MANY // 2, 8, 2, False), (MANY, 8, 0, False)],
)
def test_large_maps_few_channels_and_empty_batches_stay_with_torch(
    channels: int, size: int, images: int, own: bool
) -> None:
    layer, x = Conv3x3(channels, channels), seeded(images, channels, size, size)
    with torch.autocast("cpu", torch.bfloat16):
        assert ("SmallMaps" in layer(x).grad_fn.name()) == own
        with torch.no_grad():
            assert layer(x).grad_fn is None


def test_without_amx_the_layer_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "has_tiles", lambda: False)
    with torch.autocast("cpu", torch.bfloat16):
        assert "SmallMaps" not in Conv3x3(MANY, MANY)(seeded(2, MANY, 4, 4)).grad_fn.name()


@pytest.mark.usefixtures("amx")
def test_gradients_of_gradients_are_torchs() -> None:
    layer, x = Conv3x3(MANY, MANY), seeded(2, MANY, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    (slope,) = torch.autograd.grad(out.float().square().sum(), layer.weight, create_graph=True)
    slope.square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().max() > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch itself deprecates
def test_a_compiled_model_is_one_graph_with_torchs_layer() -> None:
    layer = Conv3x3(MANY, MANY)
    fast = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert fast(seeded(2, MANY, 4, 4)).shape == (2, MANY, 4, 4)


def test_a_limit_on_the_instructions_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    for limit, expected in (("AVX512_CORE_FP16", False), ("AVX512_CORE_AMX", True)):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        has_tiles.cache_clear()
        assert has_tiles() == expected
    has_tiles.cache_clear()
