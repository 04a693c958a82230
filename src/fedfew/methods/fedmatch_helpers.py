"""FedMatch's memory at the server: which client models are alike, and which entries each client already has.

Both live in ``ServerState.extra`` so that a checkpoint holds them: ``client/K`` (ψ_K), ``embedding/K`` (its softmax on
one fixed noise image), ``seen`` (client, round of its last answer), and for σ and ψ the values last sent
with the round in which each entry was sent.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.spill import ReplySpill
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, Contribution, ServerSite, ServerState, Updates
from fedfew.training.updates import contributions

ENTRY_BYTES = 8  # an int32 index and a float32 value
VALUE_BYTES = 4


def known(state: ServerState, kind: str) -> dict[int, Tensor]:
    """What the server keeps of each client: its model (``client``) or its embedding (``embedding``)."""
    names = ((name.partition("/"), tensor) for name, tensor in state.extra.items())
    return {int(client): tensor for (part, _, client), tensor in names if part == kind}


def last_seen(state: ServerState) -> dict[int, int]:
    """The round of each client's last answer."""
    return dict(state.extra["seen"].tolist()) if "seen" in state.extra else {}


def seen(state: ServerState, parts: Sequence[Contribution]) -> dict[str, Tensor]:
    """The rounds of the clients' last answers, after this one."""
    rounds = last_seen(state) | {part.client: state.round for part in parts}
    return {"seen": torch.tensor(sorted(rounds.items()), dtype=torch.int32).reshape(-1, 2)}


def learned(parts: Sequence[Contribution], sigma: Vector, site: ServerSite) -> dict[str, Tensor]:
    """The models of the clients that answered, each embedded by its output on the noise image."""
    noise = site.labeled.samples.random(stream(0, "fedmatch", "noise"))
    kept = {}
    for part in parts:
        site.network.load(sigma + part.vector)
        kept[f"client/{part.client}"] = part.vector
        kept[f"embedding/{part.client}"] = site.network.probabilities(noise)[0]
    return kept


def nearest(state: ServerState, client: int, count: int) -> list[Vector]:
    """The models of the ``count`` other clients most like this one; none for a client not seen before."""
    models, embeddings = known(state, "client"), known(state, "embedding")
    others = sorted(k for k in models if k != client)
    if client not in models or not others:
        return []
    distances = (torch.stack([embeddings[k] for k in others]).double() - embeddings[client].double()).norm(dim=1)
    return [models[others[i]] for i in distances.argsort(stable=True)[:count].tolist()]


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
    last = last_seen(state).get(client)
    total = 0
    for name in ("sigma", "psi"):
        stamps = state.extra[f"stamp_{name}"]
        full = VALUE_BYTES * len(stamps)
        total += full if last is None else min(full, ENTRY_BYTES * int((stamps > last + 1).sum()))
    return total


def patched(state: ServerState, updates: Updates, sent: Vector, prefix: str = "") -> list[Contribution]:
    """ψ_k or σ_k of each client: the values sent, with its changed entries."""
    spill = ReplySpill()

    def vector_of(update: ClientUpdate) -> Vector:
        vector = sent.clone()
        vector[update.reply[f"{prefix}index"].long()] += update.reply[f"{prefix}change"]
        return spill.put({"": vector})[""]

    return contributions(state, updates, vector=vector_of)
