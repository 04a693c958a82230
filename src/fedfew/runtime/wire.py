"""A method's messages as they are sent: transforms are applied at the client and undone at the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from fedfew.core.layout import Layout, Payload, Schema
from fedfew.core.types import ClientSite, ClientUpdate, Method, ServerSite, ServerState, Trained, Transform


@dataclass(frozen=True, eq=False)
class Wire:
    """The transforms of a run, innermost first: the first is next to the method, the last next to the network."""

    method: Method
    transforms: Sequence[Transform] = ()

    def schemas(self, layout: Layout) -> list[Schema]:
        """The schema of the method's reply, then of each transform's output; the last one is what is sent."""
        schemas = [self.method.reply_schema(layout)]
        for transform in self.transforms:
            schemas.append(transform.travels(schemas[-1], layout))
        return schemas

    def reply_schema(self, layout: Layout) -> Schema:
        """The schema of what is sent."""
        return self.schemas(layout)[-1]

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """A client's round: the payload inwards through the transforms, the reply outwards."""
        schemas = self.schemas(site.network.layout)
        layers = list(zip(self.transforms, schemas, strict=False))
        seen = payload
        for transform, schema in reversed(layers):
            seen = transform.incoming(seen, schema, site)
        trained = self.method.train_client(seen, site, rng)
        for transform, schema in layers:
            trained = transform.outgoing(trained, payload, schema, site, rng)
        return trained

    def decode(self, update: ClientUpdate, payload: Payload, layout: Layout) -> ClientUpdate:
        """The update as the method expects it."""
        layers = list(zip(self.transforms, self.schemas(layout), strict=False))
        return reduce(lambda u, layer: layer[0].decode(u, payload, layer[1], layout), reversed(layers), update)

    def check(self, site: ServerSite) -> None:
        """Raise if a transform does not fit the model."""
        for transform in self.transforms:
            transform.check(site)

    def after_round(self, state: ServerState, site: ServerSite) -> ServerState:
        """What the transforms do at the server after the method's turn."""
        return reduce(lambda now, transform: transform.after_round(now, site), self.transforms, state)
