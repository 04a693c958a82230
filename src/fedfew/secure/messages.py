"""The messages of a sum as tensors, so that every fleet carries them like other payloads and replies."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedfew.core.layout import Payload, Reply
from fedfew.secure.identity import MEMBER, SIGNATURE, roster_hash
from fedfew.secure.site import Advert, refusal
from fedfew.secure.terms import Terms
from fedfew.transforms.discrete_gaussian import Words

PREFIX = "secure."
"""Of the tensors that are added to a method's payload."""
STEP, NONCE, SITES, ROWS = (PREFIX + name for name in ("step", "nonce", "sites", "rows"))
WEIGHTS, PAYLOAD, MEMBERS = (PREFIX + name for name in ("weights", "payload", "member_"))
ADVERT = 3 * 32 + SIGNATURE
KEYS, SHARES, MASKED, AGREE, REVEAL = range(1, 6)
"""The steps of a sum."""


def offer(terms: Terms, members: Mapping[int, bytes]) -> Payload:
    """Step 1 to a site: the terms, and the sites' signed keys."""
    weights = torch.tensor(terms.weights, dtype=torch.float64)
    told = {SITES: _numbers(terms.sites), WEIGHTS: weights, PAYLOAD: _bytes(terms.payload)}
    rows = {MEMBERS + name.removeprefix(PREFIX): tensor for name, tensor in table(members).items()}
    return _step(KEYS, terms.nonce) | told | rows


def request(step: int, nonce: bytes, rows: Mapping[int, bytes]) -> Payload:
    """A later step to a site: some bytes of each site."""
    return _step(step, nonce) | table(rows)


def table(rows: Mapping[int, bytes]) -> dict[str, Tensor]:
    """Bytes of sites, all of one length, as a tensor with a row each."""
    sites = sorted(rows)
    joined = b"".join(rows[site] for site in sites)
    return {SITES: _numbers(sites), ROWS: _bytes(joined).view(len(sites), len(joined) // max(len(sites), 1))}


def read_table(message: Mapping[str, Tensor], width: int) -> dict[int, bytes]:
    """The rows of a message; E422 unless there is one of ``width`` bytes for each site."""
    sites, rows = _sites(message), message.get(ROWS)
    if rows is None or rows.dtype != torch.uint8 or tuple(rows.shape) != (len(sites), width):
        raise refusal("a message has other rows than its step asks for")
    return {site: rows[i].numpy().tobytes() for i, site in enumerate(sites)}


def read_offer(round: int, message: Mapping[str, Tensor]) -> tuple[Terms, dict[int, bytes]]:
    """The terms that a server offers, and the sites' keys."""
    sites, weights = _sites(message), message.get(WEIGHTS)
    if weights is None or weights.dtype != torch.float64 or tuple(weights.shape) != (len(sites),):
        raise refusal("the weights are not a number for each site")
    rows = {PREFIX + name.removeprefix(MEMBERS): tensor for name, tensor in message.items() if name.startswith(MEMBERS)}
    members = read_table(rows, MEMBER) if SITES in rows and len(rows[SITES]) else {}
    nonce, payload = read_bytes(message, NONCE, 16), read_bytes(message, PAYLOAD, 32)
    return Terms(round, nonce, sites, tuple(weights.tolist()), payload, roster_hash(members)), members


def read_bytes(message: Mapping[str, Tensor], name: str, length: int) -> bytes:
    """The bytes of a tensor; E422 unless it has so many."""
    tensor = message.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tuple(tensor.shape) != (length,):
        raise refusal(f"a message has no {name} of {length} bytes")
    return tensor.numpy().tobytes()


def read_words(reply: Mapping[str, Tensor]) -> Words:
    """Masked values; E422 for anything else."""
    tensor = reply.get(ROWS)
    if tensor is None or tensor.dtype != torch.int64 or tensor.dim() != 1:
        raise refusal("masked values are missing")
    return tensor.numpy().astype(np.uint64)


def words(values: Words) -> Reply:
    """Masked values; tensors have no unsigned type, the bits are the same."""
    return {ROWS: torch.from_numpy(values.astype(np.int64))}


def read_adverts(message: Mapping[str, Tensor]) -> dict[int, Advert]:
    """The keys of several sites."""
    return {site: read_advert(row) for site, row in read_table(message, ADVERT).items()}


def read_advert(row: bytes) -> Advert:
    """Three keys and the signature, one after the other."""
    return Advert(row[:32], row[32:64], row[64:96], row[96:])


def single(content: bytes) -> Reply:
    """A reply of bytes."""
    return {ROWS: _bytes(content)}


def _step(step: int, nonce: bytes) -> Payload:
    return {STEP: torch.tensor(step), NONCE: _bytes(nonce)}


def _sites(message: Mapping[str, Tensor]) -> tuple[int, ...]:
    tensor = message.get(SITES)
    if tensor is None or tensor.dtype != torch.int64 or tensor.dim() != 1:
        raise refusal("a message does not name the sites")
    sites = tuple(int(site) for site in tensor)
    if list(sites) != sorted(set(sites)) or min(sites, default=0) < 0:
        raise refusal("the sites of a message are not in order, or one is named twice")
    return sites


def _numbers(sites: Iterable[int]) -> Tensor:
    return torch.tensor(list(sites), dtype=torch.int64)


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
