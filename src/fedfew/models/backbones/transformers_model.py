"""Backbones in the format of Hugging Face transformers: DINOv2, ViT, ConvNeXt, ResNet and others that AutoModel knows.

Weights are read from safetensors alone, and no code that comes with a model is ever run. Models of timm are here too,
if it is installed: it needs torchvision, which fedfew does not, so it is in no extra.
"""

import contextlib
import inspect
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.models.backbones.pretrained import Backbone, Preprocess, Size, Source, published

WHERE, TIMM = "model transformers", "model timm"
FILTERS = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers in a preprocessor's config; any other filter is treated as bicubic."""


class Features(nn.Module):
    """One vector an image: the class token where there is one, else the model's own pooling, else the mean."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.token = any(name.endswith("cls_token") for name, _ in model.named_parameters())
        if self.token and hasattr(model, "pooler"):
            setattr(model, "pooler", None)  # noqa: B010 - pretraining left this layer at its random values
        self.scales = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters

    def forward(self, x: Tensor) -> Tensor:
        """Features N×d."""
        out = self.model(pixel_values=x, **({"interpolate_pos_encoding": True} if self.scales else {}))
        states: Tensor = out.last_hidden_state
        if self.token:
            return states[:, 0]
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        return states.mean(1) if states.dim() == 3 else states.flatten(2).mean(2)


@published
def transformers_model(*, source: Source = "", size: Size = 96) -> Backbone:
    """A model in the format of Hugging Face transformers, from a local folder or the hub; needs the extra ``hub``."""
    require("hub", WHERE)
    if not source:
        remedy = "Name a local folder, or a model on the hub such as facebook/dinov2-small"
        raise FedfewError("E103", WHERE, "model.source is empty", remedy)
    module = Features(load(source))
    last = last_block(n for n, _ in module.named_parameters())
    return Backbone(f"transformers {source}", module, _preprocess(source, size), last)


@published
def timm_model(*, source: Source = "", size: Size = 96) -> Backbone:
    """A pretrained model of timm by its name there; needs the package timm, which no extra of fedfew installs."""
    if find_spec("timm") is None:
        remedy = "Install timm and the torchvision of your torch, or use efficientnet-lite0 or transformers"
        raise FedfewError("E112", TIMM, "needs the package timm", remedy)
    import timm

    if source not in timm.list_models(pretrained=True):
        message = f"timm has no pretrained model {source!r}" if source else "model.source is empty"
        raise FedfewError("E103", TIMM, message, "timm.list_models(pretrained=True) lists the names")
    try:
        model = timm.create_model(source, pretrained=True, num_classes=0)
    except Exception as error:  # the download goes through several packages, each with its own errors
        words = " ".join(str(error).split())[:240]
        raise FedfewError("E124", TIMM, f"the weights of {source} cannot be downloaded: {words}") from error
    known = timm.data.resolve_model_data_config(model)
    preprocess = Preprocess(size, tuple(known["mean"]), tuple(known["std"]), known.get("interpolation", "bicubic"))
    return Backbone(f"timm {source}", model, preprocess, last_block(n for n, _ in model.named_parameters()))


def last_block(names: Iterable[str]) -> tuple[str, ...]:
    """Name prefixes of the last numbered stage's parameters and of those after it."""
    order = list(names)
    numbered = [(position, match[0]) for position, name in enumerate(order) if (match := re.match(r".*?\.\d+\.", name))]
    if not numbered:
        return tuple(order[-2:])
    position, prefix = numbered[-1]
    return (prefix, *order[position + 1 :])


def load(source: str) -> nn.Module:
    """The model of a local folder or the hub, from safetensors alone."""
    from transformers import AutoModel

    with quiet():
        for local in (True, False):  # an earlier download is used without asking the hub
            try:
                model, info = AutoModel.from_pretrained(
                    source,
                    trust_remote_code=False,
                    use_safetensors=True,
                    local_files_only=local,
                    dtype=torch.float32,
                    output_loading_info=True,
                )
                break
            except Exception as error:  # safetensors and the hub also raise their own types
                if not local or Path(source).is_dir():
                    raise _fault(source, error) from error
    lacking = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
    if lacking:
        raise FedfewError("E121", WHERE, f"{source} has no weights for {', '.join(sorted(lacking)[:4])}")
    loaded: nn.Module = model.eval()
    return loaded


def _fault(source: str, error: Exception) -> FedfewError:
    """The fault behind an error of transformers."""
    folder, words = Path(source), " ".join(str(error).split())[:240]
    if "trust_remote_code" in words or "custom code" in words:
        return FedfewError("E122", WHERE, f"{source} contains code, which is never run: {words}")
    if not folder.is_dir():
        if "connect" in words or "offline" in words or "cached" in words:
            return FedfewError("E124", WHERE, f"{source} is neither a folder nor available from the hub: {words}")
        return FedfewError("E121", WHERE, f"{source} cannot be loaded: {words}")
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        message = f"{source} has pickled weights only, and a pickle can hold code"
        return FedfewError("E122", WHERE, message, "Convert them with save_pretrained(folder, safe_serialization=True)")
    return FedfewError("E121", WHERE, f"{source} cannot be loaded: {words}")


def _preprocess(source: str, size: int) -> Preprocess:
    """The colour preprocessing of the model's own preprocessor; E121 if it is unknown."""
    from transformers.utils import cached_file

    try:
        with quiet():
            path = cached_file(source, "preprocessor_config.json")
        known: dict[str, Any] = json.loads(Path(str(path)).read_text("utf-8"))
    except (OSError, ValueError) as error:
        message = f"{source} has no readable preprocessor_config.json, so its preprocessing is unknown"
        raise FedfewError("E121", WHERE, message, "Save the model's image processor into the same folder") from error
    return preprocess_of(known, source, size)


def preprocess_of(known: Mapping[str, Any], source: str, size: int) -> Preprocess:
    """The colour preprocessing that an image processor's settings describe; E121 if they do not."""
    normalise = known.get("do_normalize", True)
    mean, std = (known.get(key) if normalise else None for key in ("image_mean", "image_std"))
    try:
        numbers = tuple(tuple(float(v) for v in (values or [default] * 3)) for values, default in ((mean, 0), (std, 1)))
    except (TypeError, ValueError):
        numbers = ()
    if [len(row) for row in numbers] != [3, 3] or not all(v > 0 for v in numbers[1]):
        raise FedfewError("E121", WHERE, f"{source}: image_mean and image_std are not three numbers each")
    return Preprocess(size, numbers[0], numbers[1], FILTERS.get(known.get("resample", 3), "bicubic"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and messages; errors are still raised."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as own

    before, shown = own.get_verbosity(), not are_progress_bars_disabled()
    logs = [logging.getLogger(name) for name in ("huggingface_hub", "httpx", "httpx2")]
    levels = [log.level for log in logs]
    own.set_verbosity_error()
    own.disable_progress_bar()
    disable_progress_bars()
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        own.set_verbosity(before)
        own.enable_progress_bar()
        if shown:
            enable_progress_bars()
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
