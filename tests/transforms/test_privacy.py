"""Clipping, noise and ε: what leaves a client, and what is claimed for it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from tests.deploy.conftest import TINY

from fedfew.config.parts import Parts, assemble, network_of
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite, Trained
from fedfew.runs.summary import privacy_of
from fedfew.runtime.wire import Wire
from fedfew.transforms import Privacy, epsilon, privacy
from fedfew.transforms.discrete_gaussian import S
from fedfew.transforms.privacy import Private


def tiny(**changes: Any) -> Parts:
    return assemble(load("quick", TINY | {key.replace("__", "."): value for key, value in changes.items()}))


def trained(parts: Parts, clip: float, noise: float) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The change without privacy, the change with it, and all that leaves."""
    network = network_of(parts.config, parts.federation)
    omega = network.snapshot()
    plain = parts.config.method
    state = plain.start(omega)
    payload = plain.broadcast(state, 0)
    site = ClientSite(0, network, parts.federation.samples.like(parts.federation.samples.data[:30]), 10)
    clear = plain.train_client(payload, site, stream(0, "x")).reply["psi"] - omega
    sent = Wire(plain, [Private(clip, noise)]).train_client(payload, site, stream(0, "x"))
    return clear, sent.reply["psi"] - omega, sent


def test_a_long_change_is_shortened_in_its_direction_and_a_short_one_left() -> None:
    parts = tiny(client__lr=0.5)
    clear, _, _ = trained(parts, 1e9, 0.0)
    length = float(clear.norm())
    assert length > 0
    _, short, _ = trained(parts, length / 3, 0.0)
    assert torch.allclose(short, clear / 3, atol=1e-6)
    _, same, _ = trained(parts, 2 * length, 0.0)
    assert torch.allclose(same, clear, atol=1e-6)


def test_noise_has_deviation_z_times_c_on_every_entry() -> None:
    _, blurred, sent = trained(tiny(), 0.5, 4.0)
    _, clipped, _ = trained(tiny(), 0.5, 0.0)
    noise = blurred - clipped
    error = 2.0 / math.sqrt(noise.numel())  # no seed: six standard errors, exceeded once in 10⁹ runs
    assert abs(float(noise.mean())) < 6 * error
    assert abs(float(noise.std()) - 2.0) < 6 * error / math.sqrt(2)
    assert sent.metrics == {} and sent.votes is None and sent.examples == 1


def delta_of(multiplier: float, eps: float) -> float:
    """δ(ε) of a Gaussian mechanism, from its definition (Balle and Wang 2018, Theorem 8)."""
    mu = 1 / multiplier
    return float(norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu))


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (4.0, 9), (1.0, 3)])
def test_epsilon_is_that_of_the_composed_gaussian_mechanism(noise: float, rounds: int) -> None:
    value = epsilon({noise: rounds}, 1e-5)
    assert delta_of(noise / 2 / math.sqrt(rounds), value) == pytest.approx(1e-5, rel=1e-3)


def test_the_summary_counts_every_time_a_client_was_asked() -> None:
    records: list[Any] = [{"cohort": [0, 1]}, {"cohort": [1, 2]}, {"cohort": [1]}]
    settings = Privacy(clip=1.0, noise=2.0, delta=1e-5)
    found = privacy_of(records, settings)
    assert found is not None and found["rounds_of_a_client"] == 3
    assert found["epsilon"] == pytest.approx(epsilon({2.0: 3}, 1e-5), rel=1e-5)
    assert privacy_of(records, replace(settings, clip=0.0)) is None
    assert (privacy_of(records, replace(settings, noise=0.0)) or {})["epsilon"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy.noise": 1.0},
        {"privacy.clip": 1.0, "method.name": "fedmatch"},
        {"privacy.clip": 1.0, "method.name": "all-labels"},
        {"privacy.clip": 1.0, "privacy.noise": 1.0, "model.norm": "batch"},
    ],
)
def test_what_privacy_does_not_cover_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FedfewError, match="E113"):
        load("quick", changes)


def test_clipping_fails_closed() -> None:
    """A change that is not finite cannot be shortened, so it must not leave."""
    parts = tiny()
    payload = {"omega": torch.zeros(4)}
    schema = {"psi": Expected((4,), near="omega")}
    site = ClientSite(0, parts.network, parts.federation.samples.like(parts.federation.samples.data[:3]), 10)
    for spoiled in (math.nan, math.inf):
        trained = Trained({"psi": torch.tensor([1.0, 2.0, spoiled, 3.0])})
        with pytest.raises(ArithmeticError, match=r"^the change is not finite, so it cannot be clipped$"):
            Private(1.0, 0.0).outgoing(trained, payload, schema, site, stream(0, "x"))
        sums = {"psi": Expected((4,), per_example=1.0)}
        with pytest.raises(ArithmeticError, match="the sums are not finite"):
            Private(0.0, 1.0, per_image=True).outgoing(trained, payload, sums, site, stream(0, "x"))
    still = Private(1.0, 0.0).outgoing(Trained({"psi": payload["omega"]}), payload, schema, site, stream(0, "x"))
    assert still.reply["psi"].tolist() == [0.0] * 4, "no change has length 0"


def test_sums_are_clipped_together_with_changes_and_bounded_by_the_clip_alone() -> None:
    site = ClientSite(0, None, torch.zeros(3), 10, False)  # type: ignore[arg-type]
    never = "no sums are like this"
    schema = {
        "psi": Expected((1,), near="omega"),
        "sums": Expected((2,), per_example=1.0, rule=lambda *_: never),
    }
    sent, trained = {"omega": torch.tensor([2.0])}, {"psi": torch.tensor([5.0]), "sums": torch.tensor([0.0, 4.0])}
    left = Private(2.5, 0.0).outgoing(Trained(trained), sent, schema, site, stream(0, "x")).reply
    assert left["psi"].tolist() == [3.5] and left["sums"].tolist() == [0.0, 2.0], "half of a change of length 5"
    travels = Private(2.5, 0.0).travels(schema, Layout((), (), (0,), 0))
    assert [expected.per_example for expected in travels.values()] == [0.0, 0.0]
    assert travels["sums"].rule is None, "noise makes sums that no images have"
    assert travels["psi"].near == "omega"


def test_noise_for_single_images_fits_what_one_image_adds_to_all_sums_together() -> None:
    """An image that adds 3 to one sum and 4 to another moves both by a vector of length 5."""
    site = ClientSite(0, None, torch.zeros(3), 10, False)  # type: ignore[arg-type]
    schema = {name: Expected((4000,), per_example=size) for name, size in (("one", 3.0), ("other", 4.0))}
    zero = Trained({name: torch.zeros(4000) for name in schema}, {"kept": 7.0}, examples=9)
    sent = Private(0.0, 2.0, per_image=True).outgoing(zero, {}, schema, site, stream(0, "x"))
    for noise in sent.reply.values():
        assert float(noise.std()) == pytest.approx(2 * 5, rel=6 / math.sqrt(2 * 4000))  # six standard errors
    assert (sent.examples, sent.metrics) == (1, {}), "not even whether there are images is told"


def test_the_noise_is_added_to_the_change_before_the_weights_round_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a weight of 10^6 float32 has steps of 1/16: added first, the change would show in the rounding."""
    sent = torch.full((1000,), 1e6)
    change = torch.linspace(-40, 40, 1000).round()
    site = ClientSite(0, None, torch.zeros(3), 10, False)  # type: ignore[arg-type]
    schema, payload = {"psi": Expected((1000,), near="omega")}, {"omega": sent}
    monkeypatch.setattr(privacy, "Keystream", lambda: None)
    monkeypatch.setattr(privacy, "discrete_gaussian", lambda count, source: np.arange(count) * 17_000)
    left = Private(10.0, 0.01).outgoing(Trained({"psi": sent + change}), payload, schema, site, stream(0, "x"))
    step = 10 * 0.01 / S
    clipped = (float(10 / change.double().norm()) * change).double() * privacy.SHORTER
    blurred = ((clipped / step).trunc() + 17_000 * torch.arange(1000)) * step
    assert torch.equal(left.reply["psi"], sent + blurred.float())


def test_updates_with_different_noise_compose() -> None:
    both = epsilon({4.0: 1, 2.0: 1}, 1e-5)
    assert delta_of(1 / math.sqrt(0.25 + 1.0), both) == pytest.approx(1e-5, rel=1e-3)
    assert epsilon({}, 1e-5) == 0 and epsilon({0.0: 1, 4.0: 1}, 1e-5) == math.inf
