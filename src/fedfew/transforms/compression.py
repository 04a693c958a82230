"""Compressed uploads for every method that sends vectors: what changed is encoded, what was lost is remembered.

S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with Memory. NeurIPS 2018; S. P. Karimireddy et al.: Error
Feedback Fixes SignSGD. ICML 2019. Ingredients of RC-SSFL (Y. Liu et al. 2020) together with a robust aggregator.

    client:  d = ψ_k − ω + e_k;   sent = encode(d);   e_k ← d − decode(sent)     e_k stays in the client's memory
    server:  ψ_k = ω + decode(sent), checked by the gate before and after decoding

Statistics of a batch norm travel as they are: a running variance with an error in it can fall below zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt, Le

from fedfew.core.layout import Layout, Vector
from fedfew.core.settings import Doc
from fedfew.core.types import (
    Algorithm,
    ClientSite,
    ClientUpdate,
    Expected,
    Payload,
    Reply,
    Schema,
    ServerSite,
    ServerState,
    Trained,
)
from fedfew.transforms.codecs import Codec, Half, Int8, Ternary, TopK


@dataclass(frozen=True)
class Compression:
    """How uploads are compressed; off by default."""

    kind: Annotated[
        Literal["none", "float16", "int8", "top-k", "ternary"], Doc("how a client's change is encoded on its way up")
    ] = "none"
    share: Annotated[float, Gt(0), Le(1), Doc("top-k: share of the entries that travels")] = 0.1
    feedback: Annotated[bool, Doc("whether clients remember what encoding lost and add it to their next change")] = True

    def codec(self) -> Codec | None:
        """The codec of that kind; None for no compression."""
        kinds: dict[str, Codec] = {"float16": Half(), "int8": Int8(), "top-k": TopK(self.share), "ternary": Ternary()}
        return kinds.get(self.kind)


def vectors(algorithm: Algorithm) -> list[str]:
    """Which of its replies can be compressed: those that stay near a vector the client was sent."""
    toy = Layout(("weight",), ((1, 1),), (0, 1), 1)
    return [name for name, expected in algorithm.reply_schema(toy).items() if expected.near]


@dataclass(frozen=True, eq=False)
class Compressed:
    """A method whose clients' vectors travel encoded; the method itself notices nothing."""

    inner: Algorithm
    codec: Codec
    feedback: bool = True
    unfit: ClassVar[Mapping[str, str]] = {}
    asks_clients: ClassVar[bool] = True
    usual_aggregator: ClassVar[str] = "uniform"

    def start(self, omega: Vector) -> ServerState:
        return self.inner.start(omega)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return self.inner.before_clients(state, site, rng)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return self.inner.broadcast(state, client)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        layout = site.network.layout
        trained = self.inner.train_client(payload, site, rng)
        reply: Reply = {}
        for name, expected in self.inner.reply_schema(layout).items():
            if not expected.near:
                reply[name] = trained.reply[name]
                continue
            change = trained.reply[name] - payload[expected.near]
            reply |= self._encode(name, change, layout, site)
        return replace(trained, reply=reply)

    def _encode(self, name: str, change: Vector, layout: Layout, site: ClientSite) -> Reply:
        n, memory = layout.trainable, f"residual.{name}"
        weights = change[:n]
        if self.feedback and memory in site.memory and site.memory[memory].shape == weights.shape:
            weights = weights + site.memory[memory]
        parts = self.codec.encode(weights)
        if self.feedback:
            lost = weights - self.codec.decode(parts, n)
            # a client whose training diverged is refused by the gate, and must not remember it for ever
            site.memory[memory] = lost if bool(torch.isfinite(lost).all()) else torch.zeros_like(lost)
        encoded = {f"{name}.{part}": tensor for part, tensor in parts.items()}
        return encoded | ({f"{name}.statistics": change[n:]} if n < layout.size else {})

    def decode(self, update: ClientUpdate, payload: Payload, layout: Layout) -> ClientUpdate:
        """The update as the method knows it, from one that has passed the gate."""
        n = layout.trainable
        reply: Reply = {}
        for name, expected in self.inner.reply_schema(layout).items():
            if not expected.near:
                reply[name] = update.reply[name]
                continue
            parts = {part: update.reply[f"{name}.{part}"] for part in self.codec.form(n)}
            change = self.codec.decode(parts, n)
            if n < layout.size:
                change = torch.cat([change, update.reply[f"{name}.statistics"]])
            reply[name] = payload[expected.near] + change
        return replace(update, reply=reply)

    def decoded_schema(self, layout: Layout) -> Schema:
        """What must hold of an update after decoding."""
        return self.inner.reply_schema(layout)

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> ServerState:
        return self.inner.after_clients(state, updates, site, rng)

    def reply_schema(self, layout: Layout) -> Schema:
        return dict(self._encoded(layout))

    def _encoded(self, layout: Layout) -> Iterator[tuple[str, Expected]]:
        n = layout.trainable
        for name, expected in self.inner.reply_schema(layout).items():
            if not expected.near:
                yield name, expected
                continue
            for part, form in self.codec.form(n).items():
                yield f"{name}.{part}", form
            if n < layout.size:
                yield f"{name}.statistics", Expected((layout.size - n,))
