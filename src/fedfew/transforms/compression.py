"""Compressed uploads for every method that sends vectors: changes are encoded, with error feedback.

S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with Memory. NeurIPS 2018; S. P. Karimireddy et al.: Error
Feedback Fixes SignSGD. ICML 2019. Ingredients of RC-SSFL (Y. Liu et al. 2020) together with a robust aggregator.

    client:  d = ψ_k − ω + e_k;   sent = encode(d);   e_k ← d − decode(sent)     e_k stays in the client's memory
    server:  ψ_k = ω + decode(sent), checked by the gate before and after decoding

Batch-norm statistics are sent as they are: an error in a running variance could make it negative.
"""

from dataclasses import dataclass, replace

import torch

from fedfew.core.layout import Layout, Vector
from fedfew.core.types import ClientSite, ClientUpdate, Expected, Payload, Reply, Schema, Trained, Transform
from fedfew.transforms.codecs import Codec, Half, Int8, Ternary, TopK


def codec_of(kind: str, share: float) -> Codec:
    """The codec of this name."""
    kinds: dict[str, Codec] = {"float16": Half(), "int8": Int8(), "top-k": TopK(share), "ternary": Ternary()}
    return kinds[kind]


@dataclass(frozen=True, eq=False)
class Compressed(Transform):
    """Clients send their vectors encoded, everything else as it is."""

    codec: Codec
    feedback: bool = True

    def travels(self, schema: Schema, layout: Layout) -> Schema:
        n = layout.trainable
        encoded: Schema = {}
        for name, expected in schema.items():
            if not expected.near:
                encoded[name] = expected
                continue
            encoded |= {f"{name}.{part}": form for part, form in self.codec.form(n).items()}
            if n < layout.size:
                encoded[f"{name}.statistics"] = Expected((layout.size - n,))
        return encoded

    def outgoing(
        self, trained: Trained, payload: Payload, schema: Schema, site: ClientSite, rng: torch.Generator
    ) -> Trained:
        reply: Reply = {}
        for name, expected in schema.items():
            if expected.near:
                reply |= self._encode(name, trained.reply[name] - payload[expected.near], site)
            else:
                reply[name] = trained.reply[name]
        return replace(trained, reply=reply)

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
            if not expected.near:
                reply[name] = update.reply[name]
                continue
            parts = {part: update.reply[f"{name}.{part}"] for part in self.codec.form(n)}
            change = self.codec.decode(parts, n)
            if n < layout.size:
                change = torch.cat([change, update.reply[f"{name}.statistics"]])
            reply[name] = payload[expected.near] + change
        return replace(update, reply=reply)
