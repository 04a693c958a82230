"""What all sites of a sum must agree on. Its hash is in every signature: a server cannot tell sites different things.

The payload is part of it: sites that train from different models would send updates that cancel, except one (D.
Pasquini, D. Francati, G. Ateniese: Eluding Secure Aggregation in Federated Learning via Model Inconsistency. CCS 2022).
So are the weights: a server that gave all but one site a weight of zero would see that one.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil

from torch import Tensor

from fedfew.core.layout import Payload
from fedfew.secure.identity import roster_hash
from fedfew.secure.site import refusal

FEWEST = 3
"""With fewer sites in a sum, one that knows its own part knows the other's."""


@dataclass(frozen=True)
class Rules:
    """How a run makes its sums: from its config, so that server and sites know them alike."""

    run: str
    """A hash of the config."""
    cohort: int
    """Sites that a round selects; with fewer online there are fewer in a sum, down to the threshold of all."""
    share: float
    """Share of the selected sites that must stay to the end."""
    honest: float
    """Share of them that is sure to add its noise and to keep it to itself."""
    reach: float
    """Largest change of a weight that a site sends."""
    most_images: int
    by_images: bool
    """Whether a site's model weighs as much as it has images."""
    only_active: bool
    """Whether a site that had nothing to learn from has no weight."""
    uneven: bool
    """Whether the server's weights may differ (FedFreq); they add up to no less than those of all sites but one."""
    clip: float = 0.0
    """0: updates are not clipped; the noise then hides single images, each of which adds a bounded part."""
    noise: float = 0.0

    @property
    def private(self) -> bool:
        """Whether what is sent is bounded and noisy, so that no count may go with it."""
        return self.clip > 0 or self.noise > 0

    @property
    def weighs_images(self) -> bool:
        """Whether a site's weight is multiplied by its images."""
        return self.by_images and not self.private

    def honest_of(self, sites: int) -> int:
        """h: sites whose noise together is enough."""
        return max(1, int(self.honest * sites + 1e-9))

    def threshold(self, sites: int) -> int:
        """Sites that must stay to the end: the share, but at least three and more than half."""
        return max(FEWEST, sites // 2 + 1, ceil(self.share * sites - 1e-9))


@dataclass(frozen=True)
class Terms:
    """The terms of one sum."""

    round: int
    nonce: bytes
    sites: tuple[int, ...]
    """Those that may take part."""
    weights: tuple[float, ...]
    """What the server gives each, the largest being 1; a site multiplies it by its images where they count."""
    payload: bytes
    """SHA-256 of what every site trains from."""
    members: bytes
    """SHA-256 of the sites' keys."""

    @staticmethod
    def of(round: int, weights: Mapping[int, float], payload: Payload, members: Mapping[int, bytes]) -> "Terms":
        """New terms; the nonce makes them those of one attempt."""
        largest, sites = max(weights.values()), tuple(sorted(weights))
        shares = tuple(weights[k] / largest for k in sites)
        return Terms(round, secrets.token_bytes(16), sites, shares, fingerprint(payload), roster_hash(members))

    def context(self, rules: Rules) -> bytes:
        """The hash of these terms."""
        told = [self.round, self.nonce.hex(), self.sites, self.weights, self.payload.hex(), self.members.hex()]
        return hashlib.sha256(json.dumps([asdict(rules), told], sort_keys=True).encode()).digest()

    def check(self, rules: Rules) -> int:
        """The threshold; E422 if these are terms under which a sum would say too much about one site."""
        threshold = rules.threshold(len(self.sites))
        fewest = rules.threshold(rules.cohort)
        if not len(self.sites) == len(set(self.sites)) == len(self.weights) >= fewest:
            raise refusal(f"{len(self.sites)} sites are too few for a sum, which has {fewest}, or one is named twice")
        least = len(self.sites) - rules.uneven - 1e-9
        if not all(0 <= weight <= 1 for weight in self.weights) or sum(self.weights) < least:
            raise refusal("the weights make the sum one of few sites")
        return threshold


def fingerprint(tensors: Mapping[str, Tensor]) -> bytes:
    """SHA-256 of named tensors: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().data)
    return digest.digest()
