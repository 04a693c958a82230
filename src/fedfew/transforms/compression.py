"""Compressed uploads for every method that sends vectors: changes are encoded, with error feedback.

S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with Memory. NeurIPS 2018; S. P. Karimireddy et al.: Error
Feedback Fixes SignSGD. ICML 2019. Ingredients of RC-SSFL (Y. Liu et al. 2020) together with a robust aggregator.

    client:  d = ψ_k − ω + e_k;   sent = encode(d);   e_k ← d − decode(sent)     e_k stays in the client's memory
    server:  ψ_k = ω + decode(sent), checked by the gate before and after decoding

Batch-norm statistics are sent as they are: an error in a running variance could make it negative. Sums over images
(fedmoments) are sent in float16 or int8 without feedback: they are not changes that add up over rounds.

    float16    each entry in half precision                                                    2 bytes an entry
    int8       round(x/s) with s = max|x|/127 of each block                                    1 byte
    top-k      the largest entries, a share of all, with their indices (Stich et al. 2018)     8 bytes an entry kept
    ternary    s·sign(x) where |x| > 0.7·mean|x| of its block, else 0; s the mean of those      1.6 bits
               (Li & Liu 2016), five to a byte
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedfew.core.layout import Expected, Layout, Payload, Reply, Schema, Vector
from fedfew.core.types import ClientSite, ClientUpdate, Trained, Transform

BLOCK = 1024
"""Entries that share a scale in int8 and ternary: small, because layers differ in scale by orders of magnitude."""
DIGITS = 5
"""Ternary digits in a byte: 3⁵ = 243."""
HALF_MAX = 65504.0


class VectorCodec(Protocol):
    """Turns a vector into named tensors and back; ``form`` is what the gate expects of them."""

    def form(self, size: int) -> Schema: ...

    def encode(self, vector: Vector) -> dict[str, Tensor]: ...

    def decode(self, parts: Mapping[str, Tensor], size: int) -> Vector: ...


@dataclass(frozen=True)
class Half:
    """float16."""

    def form(self, size: int) -> Schema:
        return {"half": Expected((size,), torch.float16)}

    def encode(self, vector: Vector) -> dict[str, Tensor]:
        return {"half": vector.clamp(-HALF_MAX, HALF_MAX).half()}

    def decode(self, parts: Mapping[str, Tensor], size: int) -> Vector:
        return parts["half"].float()


@dataclass(frozen=True)
class Int8:
    """One signed byte an entry, a scale for each block."""

    def form(self, size: int) -> Schema:
        return {"code": Expected((size,), torch.int8), "scale": Expected((ceil(size / BLOCK),))}

    def encode(self, vector: Vector) -> dict[str, Tensor]:
        blocks = _blocks(vector)
        scale = blocks.abs().amax(1) / 127
        code = (blocks / scale.clamp_min(1e-38)[:, None]).round().clamp(-127, 127).to(torch.int8)
        return {"code": code.flatten()[: len(vector)].contiguous(), "scale": scale}

    def decode(self, parts: Mapping[str, Tensor], size: int) -> Vector:
        return (_blocks(parts["code"].float()) * parts["scale"][:, None]).flatten()[:size]


@dataclass(frozen=True)
class TopK:
    """The largest entries with their indices; ties go to the first."""

    share: float

    def count(self, size: int) -> int:
        """k: at least one entry."""
        return min(max(round(self.share * size), 1), size)

    def form(self, size: int) -> Schema:
        k = self.count(size)
        return {"index": Expected((k,), torch.int32, limit=size, index=True), "value": Expected((k,))}

    def encode(self, vector: Vector) -> dict[str, Tensor]:
        order = vector.abs().argsort(descending=True, stable=True)  # stable, so that equal bits give equal choices
        index = order[: self.count(len(vector))].sort().values
        return {"index": index.to(torch.int32), "value": vector[index]}

    def decode(self, parts: Mapping[str, Tensor], size: int) -> Vector:
        vector = torch.zeros(size)
        vector[parts["index"].long()] = parts["value"]
        return vector


@dataclass(frozen=True)
class Ternary:
    """−s, 0 or s, five entries to a byte, a scale for each block."""

    def form(self, size: int) -> Schema:
        return {"code": Expected((ceil(size / DIGITS),), torch.uint8), "scale": Expected((ceil(size / BLOCK),))}

    def encode(self, vector: Vector) -> dict[str, Tensor]:
        blocks = _blocks(vector)
        size = blocks.abs()
        filled = _blocks(torch.ones_like(vector))  # the last block may be part empty
        mean = (size.sum(1) / filled.sum(1))[:, None]
        large = size > 0.7 * mean
        scale = (size * large).sum(1) / large.sum(1).clamp_min(1)
        digits = (blocks.sign() * large + 1).to(torch.uint8).flatten()[: len(vector)]
        return {"code": _pack(digits), "scale": scale}

    def decode(self, parts: Mapping[str, Tensor], size: int) -> Vector:
        signs = _unpack(parts["code"], size).float() - 1
        return (_blocks(signs) * parts["scale"][:, None]).flatten()[:size]


def _blocks(vector: Tensor) -> Tensor:
    """The vector as rows of BLOCK entries, the last one filled up with zeros."""
    return pad(vector, (0, -len(vector) % BLOCK)).view(ceil(len(vector) / BLOCK), BLOCK)


def _pack(digits: Tensor) -> Tensor:
    """Ternary digits 0, 1, 2 as bytes: d0 + 3·d1 + 9·d2 + 27·d3 + 81·d4."""
    rows = pad(digits, (0, -len(digits) % DIGITS)).view(-1, DIGITS)
    places = torch.tensor([3**i for i in range(DIGITS)], dtype=torch.uint8)
    return (rows * places).sum(1, dtype=torch.int32).to(torch.uint8)


def _unpack(code: Tensor, size: int) -> Tensor:
    """The digits of each byte; an invalid byte is read as the largest valid one."""
    rest, digits = code.clamp(max=3**DIGITS - 1), []
    for _ in range(DIGITS):
        digits.append(rest % 3)
        rest = rest // 3
    return torch.stack(digits, 1).flatten()[:size]


def codec_of(kind: str, share: float) -> VectorCodec:
    kinds: dict[str, VectorCodec] = {"float16": Half(), "int8": Int8(), "top-k": TopK(share), "ternary": Ternary()}
    return kinds[kind]


@dataclass(frozen=True, eq=False)
class Compressed(Transform):
    """Clients send their vectors encoded, everything else as it is."""

    codec: VectorCodec
    feedback: bool = True

    def travels(self, schema: Schema, layout: Layout) -> Schema:
        n = layout.trainable
        encoded: Schema = {}
        for name, expected in schema.items():
            if self._rounds(expected):
                encoded |= _form_of_sums(self.codec, name, expected)
            elif expected.near:
                encoded |= {f"{name}.{part}": form for part, form in self.codec.form(n).items()}
                if n < layout.size:
                    encoded[f"{name}.statistics"] = Expected((layout.size - n,))
            else:
                encoded[name] = expected
        return encoded

    def outgoing(
        self, trained: Trained, payload: Payload, schema: Schema, site: ClientSite, rng: torch.Generator
    ) -> Trained:
        reply: Reply = {}
        for name, expected in schema.items():
            if expected.near:
                reply |= self._encode(name, trained.reply[name] - payload[expected.near], site)
            elif self._rounds(expected):
                sums = trained.reply[name]
                reply[f"{name}.exact"] = sums[: expected.exact].clone()
                reply |= {f"{name}.{p}": t for p, t in self.codec.encode(sums[expected.exact :]).items()}
            else:
                reply[name] = trained.reply[name]
        return replace(trained, reply=reply)

    def _rounds(self, expected: Expected) -> bool:
        """Whether a tensor is of sums over images, and the codec keeps all entries."""
        return bool(expected.exact) and isinstance(self.codec, Half | Int8)

    def _encode(self, name: str, change: Vector, site: ClientSite) -> Reply:
        layout, memory = site.network.layout, f"residual.{name}"
        n = layout.trainable
        weights = change[:n]
        if self.feedback and memory in site.memory and site.memory[memory].shape == weights.shape:
            weights = weights + site.memory[memory]
        parts = self.codec.encode(weights)
        if self.feedback:
            lost = weights - self.codec.decode(parts, n)
            # if training diverged, the gate refuses the client, which must not carry the error on forever
            site.memory[memory] = lost if bool(torch.isfinite(lost).all()) else torch.zeros_like(lost)
        encoded = {f"{name}.{part}": tensor for part, tensor in parts.items()}
        return encoded | ({f"{name}.statistics": change[n:]} if n < layout.size else {})

    def decode(self, update: ClientUpdate, payload: Payload, schema: Schema, layout: Layout) -> ClientUpdate:
        n = layout.trainable
        reply: Reply = {}
        for name, expected in schema.items():
            if not expected.near and not self._rounds(expected):
                reply[name] = update.reply[name]
                continue
            parts = {part: update.reply[f"{name}.{part}"] for part in self.codec.form(n)}
            if expected.near:
                statistics = [update.reply[f"{name}.statistics"]] if n < layout.size else []
                reply[name] = payload[expected.near] + torch.cat([self.codec.decode(parts, n), *statistics])
            else:
                sums = self.codec.decode(parts, len(next(iter(parts.values()))))
                reply[name] = torch.cat([update.reply[f"{name}.exact"], sums])
        return replace(update, reply=reply)


def _form_of_sums(codec: VectorCodec, name: str, expected: Expected) -> Schema:
    """What sums of any length up to a limit look like when encoded; the gate checks them again when decoded."""
    forms = {"exact": Expected((expected.exact,))} | codec.form(expected.limit)
    return {
        f"{name}.{part}": replace(form, shape=(None,), limit=form.shape[0] or 0, group=f"{name}.{part}")
        for part, form in forms.items()
    }
