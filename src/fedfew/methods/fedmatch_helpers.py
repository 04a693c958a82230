"""FedMatch's memory at the server: which client models are alike, and which entries each client already has.

Both live in ``ServerState.extra`` so that a checkpoint holds them: ``client/K`` (ψ_K), ``embedding/K`` (its softmax on
one fixed noise image), ``seen`` (client, round of its last answer), and for σ and ψ the values last sent
with the round in which each entry was sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.streams import stream
from fedfew.core.types import ServerSite, ServerState

ENTRY_BYTES = 8  # an int32 index and a float32 value
VALUE_BYTES = 4


@dataclass(frozen=True, eq=False)
class HelperLibrary:
    """The client models that the server keeps."""

    models: Mapping[int, Vector]
    embeddings: Mapping[int, Tensor]
    seen: Mapping[int, int]

    @staticmethod
    def of(state: ServerState) -> "HelperLibrary":
        models = {int(n.split("/")[1]): t for n, t in state.extra.items() if n.startswith("client/")}
        embeddings = {int(n.split("/")[1]): t for n, t in state.extra.items() if n.startswith("embedding/")}
        pairs = state.extra.get("seen")
        seen = {int(k): int(t) for k, t in pairs.tolist()} if pairs is not None else {}
        return HelperLibrary(models, embeddings, seen)

    def learn(self, vectors: Mapping[int, Vector], sigma: Vector, site: ServerSite) -> "HelperLibrary":
        """A copy with the models of the clients that answered, each embedded by its output on the noise image."""
        noise = site.labeled.samples.random(stream(0, "fedmatch", "noise"))
        embeddings = dict(self.embeddings)
        for client, psi in vectors.items():
            site.network.load(sigma + psi)
            embeddings[client] = site.network.probabilities(noise)[0]
        return HelperLibrary(dict(self.models) | dict(vectors), embeddings, self.seen)

    def nearest(self, client: int, count: int) -> list[Vector]:
        """The models of the ``count`` other clients most like this one; none for a client not seen before."""
        others = sorted(k for k in self.models if k != client)
        if client not in self.models or not others:
            return []
        known = torch.stack([self.embeddings[k] for k in others]).double()
        distances = (known - self.embeddings[client].double()).norm(dim=1)
        return [self.models[others[i]] for i in distances.argsort(stable=True)[:count].tolist()]

    def tensors(self, round: int, answered: Sequence[int]) -> dict[str, Tensor]:
        """Tensors for the server's state, with the clients that answered in this round marked as seen."""
        seen = dict(self.seen) | dict.fromkeys(answered, round)
        pairs = torch.tensor(sorted(seen.items()), dtype=torch.int32).reshape(-1, 2)
        models = {f"client/{k}": vector for k, vector in self.models.items()}
        embeddings = {f"embedding/{k}": vector for k, vector in self.embeddings.items()}
        return models | embeddings | {"seen": pairs}


def restamp(state: ServerState, now: Mapping[str, Vector], delta: float) -> dict[str, Tensor]:
    """Update the sent values of σ and ψ where they changed by more than ``delta``, stamped with the round.

    Every client that is up to date with a round holds the same values, so one vector and one stamp serve them all.
    """
    extra = dict(state.extra)
    for name, vector in now.items():
        moved = (vector - extra[f"wire_{name}"]).abs() > delta
        extra[f"wire_{name}"] = torch.where(moved, vector, extra[f"wire_{name}"])
        extra[f"stamp_{name}"] = torch.where(moved, state.round + 1, extra[f"stamp_{name}"]).to(torch.int32)
    return extra


def changed_bytes(state: ServerState, client: int) -> int:
    """Bytes of σ and ψ for this client: entries stamped since its last answer; everything, without indices, if less."""
    last = HelperLibrary.of(state).seen.get(client)
    total = 0
    for name in ("sigma", "psi"):
        stamps = state.extra[f"stamp_{name}"]
        full = VALUE_BYTES * len(stamps)
        total += full if last is None else min(full, ENTRY_BYTES * int((stamps > last + 1).sum()))
    return total
