"""Texts: UTF-8 bytes N×L, filled up with zeros. A frozen sentence encoder makes vectors of them, and these train."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import Samples


@dataclass(frozen=True, eq=False)
class Texts(Samples):
    """Texts as bytes, uint8 N×L."""

    column: str = "text"
    """The column of a table that holds them."""

    @staticmethod
    def of(cells: Iterable[object], longest: int, column: str = "text") -> "Texts":
        """Texts cut to so many bytes; an empty cell is an empty text."""
        encoded = np.array([b"" if cell is None else str(cell).encode()[:longest] for cell in cells], f"S{longest}")
        return Texts(torch.from_numpy(encoded.view(np.uint8).reshape(len(encoded), longest).copy()), column)

    @staticmethod
    def described(data: Tensor, about: Mapping[str, Any]) -> "Texts":
        """Data as the texts that ``about`` describes."""
        return Texts(data, str(about.get("text", "text")))

    def words(self) -> list[str]:
        """The texts."""
        return [bytes(row).rstrip(b"\0").decode("utf-8", "ignore") for row in self.data.cpu().numpy()]

    def crop_settings(self, count: int) -> list[Any]:
        """A text has one view."""
        return [count]

    def inputs(self, device: torch.device) -> Tensor:
        """The bytes; the encoder reads them."""
        return self.data

    def _refuse(self, *_: Any, **__: Any) -> Any:
        message = "texts become vectors by a sentence encoder before anything is learned from them"
        raise FedfewError("E113", "model.name", message, 'Set model.name = "sentence"')

    weak = strong = views = noisy = random = vectors = standardizer = _refuse

    def about(self) -> dict[str, Any]:
        return {"kind": "texts", "shape": [self.data.shape[1]], "text": self.column}

    def fault(self) -> str:
        right = self.data.dtype == torch.uint8 and self.data.dim() == 2
        return "" if right else f"texts are {self.data.dtype} of {self.data.dim()} dimensions, not bytes N×L"
