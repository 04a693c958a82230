"""A site's reply as words of a sum, and a sum as the reply that a method expects: weights, clipping and noise.

A model travels as w_k (ψ_k − ω) with its weight w_k, so that the server divides Σ w (ψ − ω) by Σ w. Sums travel as they
are. Every entry is cut to a range, which bounds it and leaves room for all sites: real numbers are whole numbers
modulo 2⁶⁴, so that masks cancel exactly.

    word = round(x / step) mod 2⁶⁴,  step ≥ bound · sites / 2⁶²

|x| ≤ bound at every site, so |Σ round(x / step)| ≤ 2⁶² + sites/2 < 2⁶³: the sum is read back without ambiguity, and is
exact to sites · step/2.

Noise is shared by the sites (P. Kairouz, Z. Liu, T. Steinke: The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation. ICML 2021): with h honest sites that arrive for sure, each adds a discrete Gaussian of
variance (z C)² / h, so that their sum has at least (z C)². C is the clip; or, for noise that hides single images, the
length of what one image adds. The words are whole steps of a grid on which each site's
noise has the deviation S = 2²⁴; the sum of m such draws is a discrete Gaussian of deviation S √m but for a distance far
below 10⁻¹⁶. Values are cut towards zero to the grid, so they never become longer than the clip.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Payload, Reply, Schema
from fedfew.core.types import Trained
from fedfew.secure.terms import Rules
from fedfew.transforms.discrete_gaussian import Keystream, S, Words, discrete_gaussian
from fedfew.transforms.privacy import SHORTER, shortening

ROOM = 2.0**62
TAIL = 64
"""No draw of the noise is larger than this many deviations."""


@dataclass(frozen=True)
class Codec:
    """Replies of one schema as words, in sums of so many selected sites."""

    rules: Rules
    schema: Schema
    sites: int

    def encode(self, trained: Trained, payload: Payload, weight: float, images: int) -> Words:
        """The words of a site's reply, its weight and the number of its images."""
        rules = self.rules
        images = min(images, 1 if rules.private else rules.most_images)
        if rules.weighs_images:
            weight *= images
        if rules.only_active and not rules.private and not trained.metrics.get("steps", 1.0):
            weight = 0.0
        changes = {name: trained.reply[name] - payload[e.near] if e.near else trained.reply[name]
                   for name, e in self._tensors()}  # fmt: skip
        scale = shortening(changes.values(), rules.clip * SHORTER) if rules.clip else 1.0
        words = [self._words(changes[name].double().numpy().ravel() * scale, e, weight if e.near else 1.0)
                 for name, e in self._tensors()]  # fmt: skip
        counts = encoded(np.array([weight]), self._weight_step, float(rules.most_images))
        return np.concatenate([*words, counts, np.array([images], np.uint64)])

    def decode(self, words: Words, payload: Payload) -> tuple[Reply, float, int]:
        """The sum as a method's reply, the sum of the weights and the number of images."""
        total = float(decoded(words[-2:-1], self._weight_step)[0])
        images = int(words[-1])
        reply, start = {}, 0
        for name, expected in self._tensors():
            length = self._length(expected, len(words))
            values = decoded(words[start : start + length], self._step(expected))
            tensor = torch.from_numpy(values / total if expected.near and total > 0 else values)
            if expected.near:
                tensor = payload[expected.near].double().flatten() + tensor
            shape = [-1 if side is None else side for side in expected.shape]
            reply[name] = tensor.view(shape).to(expected.dtype)
            start += length
        return reply, total, images

    def fits(self, count: int) -> bool:
        """Whether masked values of this length can be those of a reply."""
        fixed = sum(self._length(e, 0) for _, e in self._tensors() if None not in e.shape) + 2
        longest = sum(e.limit for _, e in self._tensors() if None in e.shape)
        return fixed <= count <= fixed + longest

    def check(self) -> None:
        """E113 if the noise's grid leaves no room for so many sites."""
        for _, expected in self._tensors():
            step = self._step(expected)
            if self.sites * (self._most(expected) / step + TAIL * S) > ROOM and self.rules.noise:
                why = "its noise is so small that whole numbers of 64 bits do not hold the sum"
                raise FedfewError("E113", "privacy.noise", why, "Add more noise, or none")

    def _tensors(self) -> Iterator[tuple[str, Expected]]:
        return iter(sorted(self.schema.items()))

    def _length(self, expected: Expected, count: int) -> int:
        """Entries of a tensor in ``count`` words; at most one tensor has no fixed length."""
        if None not in expected.shape:
            return int(np.prod([side or 0 for side in expected.shape], dtype=np.int64))
        fixed = sum(self._length(e, 0) for _, e in self._tensors() if None not in e.shape)
        return count - 2 - fixed

    @property
    def _weight_step(self) -> float:
        return finest(float(self.rules.most_images), self.sites)

    def _bound(self, expected: Expected) -> float:
        """The largest entry before it is weighed."""
        if self.rules.clip:
            return self.rules.clip
        return self.rules.reach if expected.near else expected.per_example * self.rules.most_images

    def _most(self, expected: Expected) -> float:
        """The largest entry that a site sends."""
        return self._bound(expected) * (self.rules.most_images if expected.near and self.rules.weighs_images else 1)

    def _step(self, expected: Expected) -> float:
        """The grid: with noise, that on which each site's share of it has the deviation S."""
        if not self.rules.noise:
            return finest(self._most(expected), self.sites)
        most = self.rules.clip or sqrt(sum(one.per_example**2 for _, one in self._tensors()))
        return self.noise_of(1) * most / S

    def noise_of(self, sites: int) -> float:
        """Deviation of the noise that so many sites have added, as a multiple of the clip or of what an image adds."""
        return self.rules.noise * sqrt(sites / self.rules.honest_of(self.sites))

    def _words(self, values: NDArray[np.float64], expected: Expected, weight: float) -> Words:
        bound = self._bound(expected) * weight
        words = encoded(values * weight, self._step(expected), bound, cut=self.rules.noise > 0)
        if not self.rules.noise:
            return words
        return words + discrete_gaussian(len(values), Keystream()).astype(np.uint64)


def finest(bound: float, sites: int) -> float:
    """The smallest power of two that leaves room for the sum of ``sites`` values up to ``bound``."""
    return float(2.0 ** np.ceil(np.log2(bound * sites / ROOM)))


def encoded(values: NDArray[np.float64], step: float, bound: float, *, cut: bool = False) -> Words:
    """Whole steps, of values that are limited to ± ``bound``; rounded, or ``cut`` towards zero."""
    if not np.isfinite(values).all():
        raise ArithmeticError("a value is not finite")
    steps = np.clip(values, -bound, bound) / step
    return (np.trunc(steps) if cut else np.rint(steps)).astype(np.int64).astype(np.uint64)


def decoded(words: Words, step: float) -> NDArray[np.float64]:
    """The sum of encoded values."""
    return words.astype(np.int64).astype(np.float64) * step
