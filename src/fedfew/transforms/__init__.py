"""Transforms change the messages of any method. Here are their settings; each builds its transform if it is on.

Without torch, because runs are read without it; so is ε computed, from numbers of updates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Gt, Le, Lt

from fedfew.core.extras import require
from fedfew.core.settings import Count, Doc, Fraction, NonNegative, Positive

if TYPE_CHECKING:  # ε is computed where runs are read, without torch
    from fedfew.core.layout import Schema
    from fedfew.core.types import Transform

MEASURED = ("server-data", "clients")
"""The policies that measure statistics after a round, also where no client trains."""


@dataclass(frozen=True)
class NormPolicy:
    """How normalisation layers are treated."""

    policy: Annotated[
        Literal["average", "local", "server-data", "clients"],
        Doc(
            "normalisation layers are averaged, or kept by each client (FedBN); or statistics are measured on the "
            "server's images, or on all clients' (SemiFL; in simulation only)"
        ),
    ] = "average"

    def transform(self) -> "Transform | None":
        """The transform; None where normalisation layers are averaged like weights."""
        if self.policy == "average":
            return None
        from fedfew.transforms import norm_policy

        kinds = {
            "local": norm_policy.LocalNorm,
            "server-data": norm_policy.ServerStatistics,
            "clients": norm_policy.AllStatistics,
        }
        return kinds[self.policy]()


@dataclass(frozen=True)
class Privacy:
    """Clipping and noise on a client's update; off by default."""

    clip: Annotated[NonNegative, Doc("C: a client's change is clipped to this norm; 0: no clipping, no noise")] = 0.0
    noise: Annotated[NonNegative, Doc("z: noise with standard deviation z·C on every entry of the change")] = 0.0
    delta: Annotated[float, Gt(0), Lt(1), Doc("δ of the (ε, δ) guarantee for which the report states ε")] = 1e-5
    sums: Annotated[
        Literal["open", "secure"],
        Doc(
            "open: the server may look at each update, and checks it; secure: it sees only the sum over the sites of a "
            "round, so it can check no single update, and noise is added to the sum"
        ),
    ] = "open"
    threshold: Annotated[
        Fraction, Doc("secure sums: share of the selected sites that must stay; at least three and more than half")
    ] = 2 / 3
    honest: Annotated[
        float, Gt(0), Le(1), Doc("secure sums: share of the selected sites that adds the noise z·C together")
    ] = 0.5
    reach: Annotated[Positive, Doc("secure sums: largest change of a weight that a site sends")] = 16.0
    unit: Annotated[
        Literal["site", "image"],
        Doc(
            "what the noise hides: all images of a site, whose change is clipped; or a single image, for methods that "
            "bound what one image adds (fedmoments; without clip)"
        ),
    ] = "site"
    group: Annotated[
        Count, Doc("unit image: most images of one person at a site; ε is then of all of them together")
    ] = 1

    @property
    def counted(self) -> float:
        """z as it is accounted for: one image more or less moves a sum by C, other images of a site move it by 2C."""
        return self.noise * (2 / self.group if self.unit == "image" else 1)

    @property
    def is_on(self) -> bool:
        """Whether updates are clipped or get noise."""
        return bool(self.clip or (self.noise and self.unit == "image"))

    def transform(self) -> "Transform | None":
        """The transform of every reply; None if privacy is off, or part of a secure sum."""
        if not self.is_on or self.sums == "secure":
            return None
        from fedfew.transforms.privacy import Private

        if self.noise:
            require("privacy", "privacy.noise")
        return Private(self.clip, self.noise, self.unit == "image")


@dataclass(frozen=True)
class Compression:
    """How uploads are compressed; off by default."""

    kind: Annotated[Literal["none", "float16", "int8", "top-k", "ternary"], Doc("how uploads are encoded")] = "none"
    share: Annotated[float, Gt(0), Le(1), Doc("top-k: share of the entries that is sent")] = 0.1
    feedback: Annotated[bool, Doc("error feedback: clients add what the encoding lost to their next update")] = True

    def transform(self) -> "Transform | None":
        """The transform of every reply; None for no compression."""
        if self.kind == "none":
            return None
        from fedfew.transforms.compression import Compressed, codec_of

        return Compressed(codec_of(self.kind, self.share), self.feedback)


def vectors(schema: "Schema") -> list[str]:
    """Which tensors of a reply can be compressed: those that stay near a vector the client was sent, and sums."""
    return [name for name, expected in schema.items() if expected.near or expected.exact]


def unprotected(schema: "Schema") -> list[str]:
    """Which tensors of a reply are neither near a vector that was sent nor bounded sums: noise has no meaning there."""
    return [name for name, expected in schema.items() if not expected.near and not expected.per_example]


def epsilon(spent: Mapping[float, int], delta: float) -> float:
    """ε of so many updates with each noise z: Gaussian mechanisms of multiplier z/2 (data moves an update by ≤ 2C).

    They compose to one whose inverse squared multiplier is the sum of theirs. No amplification by sampling is claimed:
    this protects against the server, which knows the clients it selected.
    """
    if any(noise <= 0 for noise, count in spent.items() if count):
        return inf
    require("privacy", "privacy.noise")
    from dp_accounting import get_epsilon_gaussian

    total = sum(count * (2 / noise) ** 2 for noise, count in spent.items())
    return float(get_epsilon_gaussian(1 / sqrt(total), delta)) if total else 0.0
