"""The networks: sizes, shapes, reproducible weights, and how they live in a vector."""

import pytest
import torch
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.data.samples import Images
from fedfew.models import MODELS
from fedfew.models.build import build_model
from fedfew.models.layers import groups, stage
from fedfew.models.winograd import Conv3x3

SMALL = {"resnet9": {"width": 4}, "cnn": {"width": 4}, "wrn": {"depth": 10, "width": 1}}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(channels: int, size: int, count: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=rng(9))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_resnet9_has_the_papers_size() -> None:
    convolutions = 9 * (3 * 64 + 64 * 128 + 2 * 128**2 + 128 * 256 + 256 * 512 + 2 * 512**2)
    assert convolutions + 512 * 10 == 6_568_640
    assert parameters(MODELS["resnet9"](3, 32, 10)) == 6_568_640


def test_wrn_28_2_has_the_size_known_from_the_literature() -> None:
    assert parameters(MODELS["wrn"](3, 32, 10, norm="batch")) == 1_467_610
    assert parameters(MODELS["wrn"](3, 32, 10, norm="group")) == 1_467_610


def test_the_small_cnn_is_small() -> None:
    weights = 25 * 16 + 9 * 16 * 32 + 9 * 32 * 32
    norms = 2 * (16 + 32 + 32)
    assert parameters(MODELS["cnn"](1, 28, 10)) == weights + norms + 32 * 10 + 10 == 14_714


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", [8, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_one_logit_per_class_for_any_size(name: str, size: int, channels: int) -> None:
    network = Network.of(build_model(name, channels, size, 7, SMALL[name], rng()))
    logits = network(Images(images(channels, size)))
    assert logits.shape == (3, 7)
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("channels", "size"), [(1, 7), (2, 32), (4, 32)])
def test_images_that_do_not_fit_are_refused(name: str, channels: int, size: int) -> None:
    with pytest.raises(FedfewError, match=f"E110 .*{channels}×{size}×{size}"):
        build_model(name, channels, size, 10, {}, rng())


def test_an_impossible_depth_and_an_unknown_name_are_refused() -> None:
    with pytest.raises(FedfewError, match=r"E103 model\.depth: is 27"):
        build_model("wrn", 3, 32, 10, {"depth": 27}, rng())
    with pytest.raises(FedfewError, match=r"E105 model\.name: there is no model 'resnet8', only resnet9, cnn, wrn"):
        build_model("resnet8", 3, 32, 10, {}, rng())


@pytest.mark.parametrize("name", SMALL)
def test_weights_come_from_the_generator_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    first = build_model(name, 1, 28, 10, SMALL[name], rng(5))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(100)
    again, other = (build_model(name, 1, 28, 10, SMALL[name], rng(seed)) for seed in (5, 6))
    torch.random.set_rng_state(before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_a_model_of_ones_own_is_seeded_too_but_keeps_its_initialisation() -> None:
    def own(channels: int, size: int, classes: int, *, fill: float) -> nn.Module:
        last = nn.Linear(channels * size * size, classes)
        nn.init.constant_(last.bias, fill)
        return nn.Sequential(nn.Flatten(), last)

    first, again = (build_model(own, 2, 4, 5, {"fill": 0.5}, rng()) for _ in range(2))
    state, same = first.state_dict(), again.state_dict()
    assert torch.equal(state["1.weight"], same["1.weight"])
    assert state["1.bias"].tolist() == [0.5] * 5


@pytest.mark.parametrize("name", SMALL)
def test_batch_norm_statistics_live_in_the_vector(name: str) -> None:
    network = Network.of(build_model(name, 1, 16, 10, SMALL[name] | {"norm": "batch"}, rng()))
    before = network.vector.clone()
    with torch.no_grad():
        network(Images(images(1, 16)))
    changed = network.layout.views((network.vector != before).float())
    moved = {key for key, mask in changed.items() if bool(mask.any())}
    assert moved == {key for key in network.layout.names if key.endswith(("running_mean", "running_var"))}
    assert moved


def test_group_norm_has_no_buffers_and_none_has_no_norm_parameters() -> None:
    assert not list(MODELS["resnet9"](3, 32, 10, width=4, norm="group").buffers())
    assert all(p.dim() in (2, 4) for p in MODELS["resnet9"](3, 32, 10, width=4).parameters())


@pytest.mark.parametrize(
    ("channels", "expected"), [(4, 1), (6, 1), (8, 2), (16, 4), (20, 5), (32, 8), (512, 8), (7, 1)]
)
def test_groups(channels: int, expected: int) -> None:
    assert groups(channels) == expected


def test_pooling_before_the_relu_changes_nothing() -> None:
    layer = stage(Conv3x3(3, 5), "none", pool=True)
    inner = next(layer.children())
    batch = images(3, 8).float() - 128
    torch.testing.assert_close(layer(batch), nn.functional.max_pool2d(inner(batch).relu(), 2))


@pytest.mark.parametrize("width", [16, 32])
def test_activations_without_normalisation_stay_in_range(width: int) -> None:
    network = Network.of(build_model("resnet9", 3, 32, 10, {"width": width}, rng()))
    signal = Images(images(3, 32, 8)).inputs(network.device)
    assert isinstance(network.module, nn.Sequential)
    with torch.no_grad():
        for layer in network.module:
            signal = layer(signal)
            assert signal.square().mean().sqrt().item() < 5
    assert 0.01 < signal.std().item() < 1


@pytest.mark.parametrize("width", [1_000_000, 2**62])
@pytest.mark.parametrize("name", SMALL)
def test_a_model_beyond_the_machine_s_memory_is_refused_before_it_is_made(name: str, width: int) -> None:
    with pytest.raises(FedfewError, match=f"^E119 model: {name} with width = {width}"):
        build_model(name, 1, 28, 10, {"width": width}, rng())
