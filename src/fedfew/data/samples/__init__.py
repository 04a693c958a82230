"""The kinds of samples; a new one is a file and a line here."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedfew.core.samples import Samples
from fedfew.data.samples.images import Images
from fedfew.data.samples.vectors import Vectors


def _texts(data: Tensor, about: Mapping[str, Any]) -> Samples:
    from fedfew.data.samples.texts import Texts  # noqa: PLC0415 - only for texts

    return Texts.described(data, about)


KINDS: dict[str, Callable[[Tensor, Mapping[str, Any]], Samples]] = {
    "images": Images.described,
    "vectors": Vectors.described,
    "texts": _texts,
}


def samples_of(data: Tensor, about: Mapping[str, Any]) -> Samples:
    """Data as the samples that ``Samples.about`` described; without a kind, bytes are images and floats vectors."""
    kind = about.get("kind") or ("images" if data.dtype == torch.uint8 else "vectors")
    return KINDS[kind](data, about)


__all__ = ["KINDS", "Images", "Vectors", "samples_of"]
