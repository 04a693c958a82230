"""What an exported model takes: images, rows of numbers, tokens of a text, or the features of an encoder of its own.

Each form is a module from these inputs to probabilities, with the inputs on which a file is compared with it.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedfew.core.network import Network
from fedfew.core.streams import stream
from fedfew.data.rows.encoder import Encoder
from fedfew.models.backbones.pretrained import of_length
from fedfew.models.build import has_backbone
from fedfew.models.winograd import plain

SAMPLE = 64
"""Samples of each kind on which a file and the model are compared."""
TOKENS = 12


@dataclass(frozen=True, eq=False)
class Form:
    """A model as a file holds it."""

    module: nn.Module
    names: tuple[str, ...]
    """Of its inputs."""
    trial: tuple[Tensor, ...]
    """Inputs to compare on."""
    free: tuple[dict[int, Any], ...]
    """The dimensions of each input that may have any length."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Probabilities."""
        with torch.inference_mode():
            probabilities: Tensor = self.module(*inputs)
        return probabilities

    @property
    def example(self) -> tuple[Tensor, ...]:
        """Two samples."""
        return tuple(part[:2].clone() for part in self.trial)


class FromPixels(nn.Module):
    """The model with its normalisation in front and the softmax behind: uint8 images in, probabilities out.

    Convolutions are the plain ones, as in the exported files.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: Network, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = _alone(network)
        plain(self.module)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (about["mean"], about["std"]))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, images: Tensor) -> Tensor:
        return torch.softmax(self.module(images.float() * self.scale + self.shift), 1)


class FromNumbers(nn.Module):
    """Rows of raw numbers, as the encoder names them, to probabilities; computed in float64 up to the model."""

    def __init__(self, network: Network, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.module, self.encoder = _alone(network), Encoder.described(about["encoder"])
        for name in ("mean", "weight"):
            self.register_buffer(name, torch.tensor(getattr(self.encoder, name), dtype=torch.float64))

    def forward(self, numbers: Tensor) -> Tensor:
        scaled = self.encoder.scaled(numbers.double(), self.get_buffer("mean"), self.get_buffer("weight"))
        return torch.softmax(self.module(scaled.float()), 1)

    def trial(self) -> Tensor:
        """Rows about the server's mean, some of them far away."""
        draws = torch.randn(2 * SAMPLE, len(self.encoder.mean), generator=stream(0, "export")).double()
        weight = self.get_buffer("weight")
        spread = torch.where(weight > 0, 1 / weight.clamp_min(1e-300), 0.0)
        return (self.get_buffer("mean") + draws * spread).float()


class FromTokens(nn.Module):
    """Token numbers of texts and their mask, as the tokenizer next to the file gives them, to probabilities."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.module = _alone(network)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(self.module.of_tokens(tokens, mask), 1)

    def trial(self) -> tuple[Tensor, Tensor]:
        """Random tokens, in texts of different lengths."""
        known, rng = self.module.tokenizer.get_vocab_size(), stream(0, "export")
        tokens = torch.randint(0, known, (SAMPLE, TOKENS), generator=rng)
        lengths = torch.randint(2, TOKENS + 1, (SAMPLE, 1), generator=rng)
        return tokens, (torch.arange(TOKENS) < lengths).long()


class FromFeatures(nn.Module):
    """The head alone, where the encoder is a file of its own: the encoder's features to probabilities."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        own = network.module
        assert has_backbone(own)
        self.head, self.inputs = copy.deepcopy(own.trained_part()), own.inputs

    def forward(self, features: Tensor) -> Tensor:
        return torch.softmax(self.head(of_length(features)), 1)


def form_of(network: Network, about: Mapping[str, Any], *, with_encoder: bool = True) -> Form:
    """The form for the samples that a model file describes; not ``with_encoder``: of the head, if it can be alone."""
    batch, module = torch.export.Dim("batch"), network.module
    if "encoder" in about:
        numbers = FromNumbers(network, about).eval()
        return Form(numbers, ("numbers",), (numbers.trial(),), ({0: batch},))
    if "text" in about:
        texts = FromTokens(network).eval()
        both = {0: batch, 1: torch.export.Dim("tokens", min=2, max=512)}
        return Form(texts, ("tokens", "mask"), texts.trial(), (both, both))
    if not with_encoder and is_foreign(module):
        head = FromFeatures(network).eval()
        drawn = torch.randn(2 * SAMPLE, head.inputs, generator=stream(0, "export"))
        return Form(head, ("features",), (drawn,), ({0: batch},))
    return Form(FromPixels(network, about).eval(), ("images",), (_images(about["shape"]),), ({0: batch},))


def is_foreign(module: nn.Module) -> bool:
    """Whether the backbone is a file that torch does not hold."""
    return has_backbone(module) and not any(True for _ in module.backbone.parameters())


def _alone(network: Network) -> Any:
    """The module with tensors of its own: the network's are views into one vector."""
    module = copy.deepcopy(network.module)
    own = {name: value.detach().clone().contiguous() for name, value in network.module.state_dict().items()}
    module.load_state_dict(own, assign=True)
    for parameter in module.parameters():
        parameter.requires_grad_(False).grad = None
    return module


def _images(shape: list[int]) -> Tensor:
    """Noise and smooth patterns of every brightness."""
    rng = stream(0, "export")
    noise = torch.randint(0, 256, (SAMPLE, *shape), generator=rng)
    brightness = torch.linspace(0, 1, SAMPLE).view(-1, 1, 1, 1)
    patches = 255 * torch.rand((SAMPLE, shape[0], 4, 4), generator=rng)
    smooth = interpolate(patches, shape[1:], mode="bilinear", align_corners=False)
    return torch.cat([(noise * brightness).to(torch.uint8), smooth.to(torch.uint8)])
