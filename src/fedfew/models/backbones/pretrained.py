"""A model that starts from a pretrained backbone: preprocessing, backbone, features of one length, head.

Preprocessing is part of the module, so it applies wherever the module is used: training, predictions, exports.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import Parameter, Signature, signature
from math import prod
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional as F

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout
from fedfew.core.samples import Samples
from fedfew.core.settings import Doc, Natural, settings_of
from fedfew.data.samples import Images, vectors
from fedfew.data.samples.texts import Texts
from fedfew.models.layers import Head

LENGTH = vectors.LENGTH
SMALLEST = 8
"""Images with fewer pixels a side are too small to enlarge."""

Train = Annotated[
    Literal["head", "last", "all"],
    Doc("what is trained: the linear head (features are then computed once), also the last stage, or everything"),
]
FrozenOnly = Annotated[Literal["head"], Doc("what is trained: the linear head; features are computed once")]
Size = Annotated[int, Ge(32), Le(224), Doc("pixels a side that images are scaled to for the backbone")]
Views = Annotated[
    int, Ge(1), Le(16), Doc("where features are computed once: views per image, i.e. plain, mirrored and shifted ones")
]
Hidden = Annotated[Natural, Doc("units of a hidden layer in the head; 0: the head is linear")]
LrScale = Annotated[float, Gt(0), Le(1), Doc("step size of the backbone relative to the head's, where it is trained")]
Source = Annotated[str, Doc("local folder, or name on the hub")]


@dataclass(frozen=True)
class Preprocess:
    """The input a backbone was trained on: RGB in [0, 1] scaled to size×size, then (x − mean) / std."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"

    def __call__(self, x: Tensor, enlarged: float = 1.0) -> Tensor:
        """Images N×(1 or 3)×H×W in [0, 1] as the backbone expects them."""
        side = round(self.size * enlarged)
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if tuple(x.shape[2:]) != (side, side):
            shrinks = min(x.shape[2:]) > side
            x = F.interpolate(x, (side, side), mode=self.interpolation, align_corners=False, antialias=shrinks)
            x = x.clamp(0, 1)
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True, eq=False)
class Backbone:
    """A module from preprocessed images to feature vectors N×d, with its name and preprocessing.

    If the module has methods ``trunk`` and ``tail`` (together the same as a call), ``train = "last"`` computes the
    trunk's output only once.
    """

    name: str
    module: nn.Module
    preprocess: Preprocess
    last: tuple[str, ...] = ()
    """Name prefixes of the parameters that ``train = "last"`` trains."""
    classifier: Tensor | None = None
    """The weights of the classifier it was trained with, classes×d, if they are known."""
    named: Callable[[Tensor, Sequence[str]], Tensor | None] | None = None
    """From these weights and names of classes to weights C×d, where the classes of the classifier have names."""
    file_hash: str = ""
    """SHA-256 of the file, where the module has no weights of its own."""

    @property
    def hash(self) -> str:
        """SHA-256 over all weights and their names."""
        if self.file_hash:
            return self.file_hash
        seen = hashlib.sha256(type(self.module).__name__.encode())
        for name, tensor in self.module.state_dict().items():
            seen.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            seen.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return seen.hexdigest()


class Pretrained(Head):
    """Images in [0, 1] to logits. Parameters that are not trained have ``requires_grad = False`` and never change."""

    def __init__(
        self,
        backbone: Backbone,
        width: int,
        classes: int,
        train: Train = "head",
        views: Views = 1,
        lr_scale: LrScale = 1.0,
        hidden: Hidden = 0,
    ) -> None:
        super().__init__(width, classes, hidden)
        self.backbone = backbone.module
        self.preprocess, self.name, self.hash = backbone.preprocess, backbone.name, backbone.hash
        self.views, self.lr_scale, self.trained = views, lr_scale, train
        self.classifier, self._named = backbone.classifier, backbone.named
        self.once = train == "head" or (train == "last" and hasattr(self.backbone, "trunk"))
        if self.once:
            with torch.no_grad():
                side = self.preprocess.size
                self._kept = tuple(self._once(torch.zeros(1, 3, side, side)).shape[1:])
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(train == "all" or (train == "last" and name.startswith(backbone.last)))
        self.train()

    def train(self, mode: bool = True) -> "Pretrained":
        """A frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.once:
            self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images, or of their ``features`` (N×d)."""
        return super().forward(self._embed(self.preprocess(x)) if x.ndim == 4 else self._finish(x))

    def named(self, classes: Sequence[str]) -> Tensor | None:
        """What the backbone knows of classes by their names, as weights of the features (C×d); None if nothing."""
        if self.classifier is None or self._named is None:
            return None
        return self._named(self.classifier, classes)

    def trained_part(self) -> Head:
        """The part that takes the features: the head alone, or the whole model where more is trained."""
        if self.trained != "head":
            return self
        alone = Head(self.inputs, self.head.out_features)
        alone.hidden, alone.head, alone.classifier = self.hidden, self.head, self.classifier
        return alone

    @property
    def width(self) -> int:
        """How many numbers ``features`` returns for a view."""
        return prod(self._kept)

    def features(self, samples: Images | Texts, keys: Tensor) -> Tensor:
        """The features that are computed once, N×V×d; an image's views follow from its key (N×16 bytes)."""
        assert isinstance(samples, Images)
        crops = samples.crops(self.views, keys, self.preprocess, self.preprocess.size)
        return torch.stack([self._once(crop).flatten(1) for crop in crops], 1)

    def _once(self, x: Tensor) -> Tensor:
        return self._embed(x) if self.trained == "head" else self._part("trunk", x)

    def _part(self, name: str, x: Tensor) -> Tensor:
        out: Tensor = getattr(self.backbone, name)(x)
        return out

    def _finish(self, features: Tensor) -> Tensor:
        """From the features computed once to the head's input."""
        if self.trained == "head":
            return features
        return of_length(self._part("tail", features.view(-1, *self._kept)))

    def _embed(self, x: Tensor) -> Tensor:
        return of_length(self.backbone(x))

    def check(self, samples: Samples) -> None:
        """E113 for anything but images in [0, 1]: a backbone has its own mean and deviation of pixels."""
        if not isinstance(samples, Images) or samples.normalized:
            message = f"{self.name} takes images and has its own mean and deviation of pixels"
            raise FedfewError("E113", "dataset.normalize", message, 'Set dataset.normalize = "unit"')

    def rates(self, layout: Layout) -> Tensor | None:
        """The step size of each trainable entry relative to the head's, where the backbone's differs."""
        if self.lr_scale == 1:
            return None
        rates = torch.ones(layout.size)
        for name, view in layout.views(rates).items():
            if name.startswith("backbone."):
                view.fill_(self.lr_scale)
        return rates[: layout.trainable]

    def about(self) -> dict[str, Any]:
        """What a model file says about the backbone, whose frozen weights it does not hold."""
        return {"name": self.name, "sha256": self.hash, "preprocess": asdict(self.preprocess), "length": LENGTH}


def of_length(features: Tensor) -> Tensor:
    """Features of the length that step sizes suit."""
    return LENGTH * F.normalize(features.float(), dim=1)


def pretrained(
    backbone: Backbone, channels: int, pixels: int, classes: int, options: Mapping[str, Any] | None = None
) -> Pretrained:
    """The model on a backbone; it is tried on one grey image, so that a misfit is refused at once."""
    where = f"model {backbone.name}"
    if channels not in (1, 3) or pixels < SMALLEST:
        message = f"cannot take images of {channels}×{pixels}×{pixels}"
        remedy = f"Give images with 1 or 3 channels and at least {SMALLEST}×{SMALLEST} pixels"
        raise FedfewError("E110", where, message, remedy)
    _without_batch_norm(backbone.module)
    size = backbone.preprocess.size
    try:
        with torch.no_grad():
            features = backbone.module.eval()(torch.zeros(2, 3, size, size))
    except Exception as error:  # a user's own backbone may fail in any way
        message = f"fails on images of 3×{size}×{size}: {type(error).__name__}: {str(error)[:200]}"
        raise FedfewError("E123", where, message, "Set model.size to a value that it accepts") from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2 or not features.is_floating_point():
        shape = f"a tensor {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise FedfewError("E123", where, f"returns {shape} for 2 images, not one vector for each")
    if not bool(features.isfinite().all()):
        raise FedfewError("E123", where, "returns features that are not finite")
    return Pretrained(backbone, features.shape[1], classes, **(options or {}))


def published(load: Callable[..., Backbone], *, frozen: bool = False) -> Callable[..., Pretrained]:
    """The model function of a backbone: it has the docstring and the settings of ``load``, and those of ``Pretrained``.

    ``frozen``: the backbone cannot be trained.
    """
    of_head = dict(settings_of(Pretrained))
    if frozen:
        del of_head["lr_scale"]
        of_head["train"] = replace(of_head["train"], annotation=FrozenOnly)

    def model(channels: int, pixels: int, classes: int, **settings: Any) -> Pretrained:
        backbone = load(**{name: value for name, value in settings.items() if name not in of_head})
        options = {name: value for name, value in settings.items() if name in of_head}
        return pretrained(backbone, channels, pixels, classes, options)

    shape, settings = list(signature(model).parameters.values())[:3], {**settings_of(load), **of_head}
    keys = [Parameter(name, Parameter.KEYWORD_ONLY, default=one.default) for name, one in settings.items()]
    setattr(model, "__signature__", Signature([*shape, *keys]))  # noqa: B010 - functions have no such field for mypy
    model.__annotations__ |= {name: one.annotation for name, one in settings.items()}
    model.__name__, model.__module__, model.__doc__ = load.__name__, load.__module__, load.__doc__
    return model


class Affine(nn.Module):
    """A batch norm with frozen statistics: one factor and one shift a channel, both parameters."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        scale = (norm.running_var + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight.detach())
        shift = (0.0 if norm.bias is None else norm.bias.detach()) - norm.running_mean * scale
        self.scale, self.shift = nn.Parameter(scale), nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.view(1, -1, 1, 1) + self.shift.view(1, -1, 1, 1)


def _without_batch_norm(module: nn.Module) -> None:
    """A pretrained model keeps its statistics: small and skewed clients would spoil them."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, Affine(child))
