"""Noise from a cipher: exactly the discrete Gaussian, on a grid, never the same twice."""

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from fedfew.core.layout import Expected
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite, Trained
from fedfew.transforms import discrete_gaussian as sampler
from fedfew.transforms.discrete_gaussian import Keystream, S, discrete_gaussian
from fedfew.transforms.privacy import Private


def test_the_limit_of_seeded_streams_that_noise_must_not_depend_on() -> None:
    """torch.Generator keeps 32 bits of its seed: whoever tries 2³² seeds finds every draw."""
    one, other = (torch.randn(8, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7 + 2**32))
    assert one.equal(other)


def sent(change: torch.Tensor, clip: float, noise: float, omega: float = 0.0) -> torch.Tensor:
    """What leaves a client whose change is given, drawn with the same stream every time."""
    payload = {"omega": torch.full_like(change, omega)}
    schema = {"psi": Expected(tuple(change.shape), near="omega")}
    site = ClientSite(0, None, torch.zeros(3), 10, False)  # type: ignore[arg-type]
    trained = Trained({"psi": payload["omega"] + change})
    return Private(clip, noise).outgoing(trained, payload, schema, site, stream(0, "x")).reply["psi"]


def test_noise_is_drawn_anew_for_every_answer_though_the_stream_is_the_same() -> None:
    """The attack on a seeded stream: draw what the seed gives, subtract it, and the clean change is left."""
    change = torch.linspace(-1, 1, 4096)
    first, second = sent(change, 100.0, 0.01), sent(change, 100.0, 0.01)
    noises = torch.stack([first - change, second - change, torch.randn(4096, generator=stream(0, "x"))])
    assert (torch.corrcoef(noises) - torch.eye(3)).abs().max() < 0.1
    assert noises[:2].std(1).tolist() == pytest.approx([1.0, 1.0], rel=0.05)


def test_whatever_the_change_the_same_numbers_can_leave() -> None:
    """All that is sent lies on the grid of the noise, so its last digits tell nothing of the change (Mironov 2012)."""
    step = 2.0 * 4.0 / S
    for change in (torch.zeros(2000), torch.rand(2000), torch.full((2000,), 1 / 3)):
        steps = sent(change.double(), 2.0, 4.0) / step
        assert steps.equal(steps.round()) and int(steps.long().unique().numel()) > 1990


def test_a_change_on_the_grid_is_never_longer_than_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.transforms.privacy.discrete_gaussian", lambda count, _: np.zeros(count, np.int64))
    for scale in (1e-3, 1.0, 1e6):
        left = sent(scale * torch.randn(10_000, generator=stream(1)), 3.0, 2.0).double().norm()
        assert left <= 3.0 and (left > 2.999 or scale == 1e-3)
    assert sent(torch.tensor([5.0, 0.0]), 3.0, 1e-12).tolist() == pytest.approx([3.0, 0.0], rel=1e-5), (
        "hardly any noise"
    )


def test_small_deviations_have_exactly_the_probabilities_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(k) ∝ exp(−k²/2S²) for S = 4, where a wrong grid, sign or acceptance would show."""
    monkeypatch.setattr(sampler, "BITS", 2)
    monkeypatch.setattr(sampler, "S", 4)
    drawn = discrete_gaussian(400_000, Keystream())
    support = np.arange(-14, 15)
    weights = np.exp(-(support**2) / 32)
    seen = np.array([(drawn == k).sum() for k in support])
    assert abs(drawn).max() < 40 and chisquare(seen, seen.sum() * weights / weights.sum()).pvalue > 1e-4


def test_draws_follow_the_normal_distribution() -> None:
    drawn = discrete_gaussian(200_000, Keystream())
    assert drawn.dtype == np.int64 and kstest(drawn / S, "norm").pvalue > 1e-4
    assert len(np.unique(drawn & 0xFF)) == 256, "the last digits are drawn too"


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 0.99])
def test_a_coin_of_probability_exp_minus_gamma(gamma: float) -> None:
    n = 200_000
    heads = sampler._exp_minus(np.full(n, int(gamma * 2**64), np.uint64), Keystream()).mean()
    p = np.exp(-gamma)
    assert abs(heads - p) <= 4.5 * np.sqrt(p * (1 - p) / n)


def test_every_answer_has_a_key_of_full_length(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []
    draw: Callable[[int], bytes] = secrets.token_bytes

    def token_bytes(count: int) -> bytes:
        keys.append(count)
        return draw(count)

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    one, other = Keystream().words(4), Keystream().words(4)
    assert keys == [32, 32] and not np.array_equal(one, other)


def test_without_the_package_the_config_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedfew.core import extras
    from fedfew.core.errors import FedfewError
    from fedfew.transforms import Privacy

    def without(package: str) -> Any:
        return None if package == "cryptography" else object()

    monkeypatch.setattr(extras, "find_spec", without)
    assert Privacy(clip=1.0).transform() is not None
    with pytest.raises(FedfewError, match="E112"):
        Privacy(clip=1.0, noise=1.0).transform()
