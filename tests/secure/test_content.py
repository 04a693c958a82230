"""What a site puts into a sum: weights, clipping, and its share of the noise."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfew.aggregators.weighted import capped, fedfreq_weights
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Payload, Reply
from fedfew.core.types import Trained
from fedfew.runs.summary import privacy_of
from fedfew.secure.content import Codec, encoded
from fedfew.secure.terms import Rules, Terms
from fedfew.transforms import Privacy, epsilon
from fedfew.transforms.discrete_gaussian import S, Words

RULES = Rules("run", 3, 2 / 3, 0.5, 16.0, 1000, by_images=False, only_active=False, uneven=False)
SENT = {"omega": torch.full((4000,), 0.25)}
MODEL = {"psi": Expected((4000,), near="omega")}
SUMS = {"sums": Expected((None,), limit=4000, per_example=2.0)}


def total(codec: Codec, replies: list[tuple[Trained, float, int]], payload: Payload = SENT) -> tuple[Reply, float, int]:
    """Σ of the replies as (reply, weight, images), decoded."""
    words: Words = np.zeros(1, np.uint64)
    for trained, weight, images in replies:
        words = words + codec.encode(trained, payload, weight, images)
    return codec.decode(words, payload)


def model(change: float, steps: float = 1.0) -> Trained:
    return Trained({"psi": SENT["omega"] + change}, {"steps": steps})


def test_models_are_weighted_by_images_and_by_the_servers_weight() -> None:
    codec = Codec(replace(RULES, by_images=True), MODEL, 3)
    reply, weight, images = total(codec, [(model(1.0), 1.0, 10), (model(-2.0), 0.5, 40), (model(0.5), 1.0, 0)])
    assert (weight, images) == (10 + 20, 50)
    assert torch.allclose(reply["psi"], SENT["omega"] + (10 * 1.0 - 20 * 2.0) / 30, atol=1e-6)


def test_a_client_without_a_step_counts_only_where_the_method_says_so() -> None:
    two = [(model(1.0), 1.0, 5), (model(0.0, steps=0.0), 1.0, 5)]
    assert float(total(Codec(RULES, MODEL, 3), two)[0]["psi"][0]) == pytest.approx(0.75)
    assert float(total(Codec(replace(RULES, only_active=True), MODEL, 3), two)[0]["psi"][0]) == pytest.approx(1.25)


def test_a_change_is_cut_to_the_reach_and_not_finite_ones_are_not_sent() -> None:
    reply, _, _ = total(Codec(RULES, MODEL, 3), [(model(1e6), 1.0, 1), (model(0.0), 1.0, 1)])
    assert torch.allclose(reply["psi"], SENT["omega"] + 16.0 / 2)
    with pytest.raises(ArithmeticError):
        total(Codec(RULES, MODEL, 3), [(model(float("nan")), 1.0, 1)])


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=12), st.sampled_from([0.0, 1.0, 1.5, 3.0]))
def test_the_weights_of_fedfreq_are_never_refused(answered: list[int], cap: float) -> None:
    """Σ (1 − p_k) = n − 1, and no weight is above 1: so together they are at least n − 1."""
    weights = capped(fedfreq_weights([count + 1 for count in answered]), cap)
    terms = Terms.of(0, dict(enumerate(weights)), SENT, {})
    assert terms.check(replace(RULES, uneven=True)) == RULES.threshold(len(answered))


def test_the_range_of_a_site_grows_with_its_images_and_not_with_the_most_that_one_may_have() -> None:
    codec = Codec(replace(RULES, by_images=True), MODEL, 3)
    reply, _, _ = total(codec, [(model(1e6), 1.0, 1), (model(0.0), 1.0, 9)])
    assert torch.allclose(reply["psi"], SENT["omega"] + 16.0 / 10)


def test_sums_travel_as_they_are() -> None:
    reply, _, images = total(Codec(RULES, SUMS, 3), [(Trained({"sums": torch.arange(5.0)}), 1.0, 3)] * 3, {})
    assert torch.equal(reply["sums"], 3 * torch.arange(5.0))
    assert images == 9


@pytest.mark.parametrize(("arrive", "times"), [(10, sqrt(2)), (5, 1.0)])
def test_the_noise_of_the_sites_adds_up_to_z_c_although_half_drop_out(arrive: int, times: float) -> None:
    z, clip = 3.0, 0.5
    codec = Codec(replace(RULES, clip=clip, noise=z), MODEL, 10)  # five of ten are sure to add theirs
    quiet = Codec(replace(RULES, clip=clip), MODEL, 10)
    parts = [(model(0.001), 1.0, 7)] * arrive
    noise = arrive * (total(codec, parts)[0]["psi"] - total(quiet, parts)[0]["psi"]).double()
    deviation = times * z * clip
    assert float(noise.std()) == pytest.approx(deviation, rel=6 / sqrt(2 * 4000))  # six standard errors
    assert abs(float(noise.mean())) < 6 * deviation / sqrt(4000)
    inside = (noise.abs() < deviation).double().mean()
    assert float(inside) == pytest.approx(0.6827, abs=6 * 0.4655 / sqrt(4000))  # as of a normal distribution


SITE = Codec(replace(RULES, noise=2.0), {"sums": Expected((None,), limit=60, per_example=1.0)}, 10)
"""Noise that hides single images: five of ten sites are sure to add theirs."""


def test_noise_for_single_images_reaches_z_with_the_sites_that_stay_and_are_honest() -> None:
    """Of ten, four drop out and one of the others adds none: the five that are left add z · 1."""
    zero = Trained({"sums": torch.zeros(4000).double()})
    codec = replace(SITE, schema={"sums": Expected((None,), limit=4000, per_example=1.0)})
    reply, _, images = total(codec, [(zero, 1.0, 7)] * 5, {})
    assert images == 5  # one each: no count of images goes with it
    noise = reply["sums"].double()
    assert float(noise.std()) == pytest.approx(2.0, rel=6 / sqrt(2 * 4000))
    assert codec.noise_of(5) == pytest.approx(2.0) and codec.noise_of(10) == pytest.approx(2.0 * sqrt(2))
    below = [float((noise < 2.0 * q).double().mean()) for q in (-1.2816, 0.0, 1.2816)]
    assert below == pytest.approx([0.1, 0.5, 0.9], abs=6 * 0.5 / sqrt(4000))


def test_no_neighbouring_data_set_found_by_search_moves_the_words_by_more_than_an_image_adds() -> None:
    """In whole steps of the grid, on which each site's noise has the deviation S, before any noise."""
    rng = np.random.default_rng(3)
    silent, furthest = replace(SITE, rules=replace(RULES, noise=2.0)), 0.0
    for _ in range(300):
        few = rng.normal(size=60) * 10 ** rng.uniform(-3, 5)
        one = rng.normal(size=60) * (rng.random(60) < rng.random())
        one = one / max(float(np.linalg.norm(one)), 1e-9) * rng.choice([1.0, 0.5, 1.0])
        step = silent._step(silent.schema["sums"])
        bound = silent._bound(silent.schema["sums"])
        words = [encoded(x, step, bound, cut=True).astype(np.int64) for x in (few, few + one)]
        furthest = max(furthest, float(np.linalg.norm((words[1] - words[0]).astype(float))))
    multiplier = S * sqrt(5) / furthest  # of five sites' noise
    assert 2.0 * (1 - 1e-5) <= multiplier <= 2.0 * (1 + 1e-5)


def test_accounting_agrees_with_the_accountant_of_privacy_loss_distributions() -> None:
    """An answer in EM is two mechanisms, of s and 1 − s of the budget; four answers of one image, z = 2."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    pld = PLDAccountant(value_discretization_interval=1e-3)
    for _ in range(4):
        pld.compose(GaussianDpEvent(2.0 / sqrt(0.2))).compose(GaussianDpEvent(2.0 / sqrt(0.8)))
    ours = epsilon({Privacy(noise=2.0, unit="image", sums="secure").counted: 4}, 1e-5)
    assert ours == pytest.approx(pld.get_epsilon(1e-5), rel=1e-2)
    assert Privacy(noise=6.0, unit="image", group=3).counted == Privacy(noise=2.0, unit="image").counted


def test_a_long_change_is_clipped_to_c_and_no_count_goes_with_it() -> None:
    codec = Codec(replace(RULES, clip=0.5, by_images=True, only_active=True), MODEL, 3)
    reply, weight, images = total(codec, [(model(1.0), 1.0, 10), (model(3.0, steps=0.0), 1.0, 999)])
    assert (weight, images) == (2.0, 2)  # one each: neither the images nor whether there was a step
    assert float((reply["psi"] - SENT["omega"]).norm()) == pytest.approx(0.5, rel=1e-4)  # both at C, in one direction


def test_too_little_noise_for_whole_numbers_is_refused() -> None:
    Codec(replace(RULES, clip=1.0, noise=1e-3), MODEL, 100).check()
    with pytest.raises(FedfewError, match=r"E113 privacy.noise"):
        Codec(replace(RULES, clip=1.0, noise=1e-13), MODEL, 100).check()


def test_epsilon_is_that_of_the_sum_over_all_releases() -> None:
    record = {"cohort": [0, 1, 2]}
    spent = privacy_of([record] * 12, Privacy(clip=1.0, noise=30.0, sums="secure"))  # type: ignore[list-item]
    assert spent is not None
    assert spent["epsilon"] == pytest.approx(epsilon({30.0: 12}, 1e-5), rel=1e-5)


def test_thresholds_are_at_least_three_more_than_half_and_the_share() -> None:
    assert [RULES.threshold(n) for n in (3, 4, 5, 9, 30, 100)] == [3, 3, 4, 6, 20, 67]
    assert [replace(RULES, share=0.1).threshold(n) for n in (3, 4, 5, 30)] == [3, 3, 3, 16]
    assert replace(RULES, share=1.0).threshold(30) == 30


@given(st.integers(3, 400), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_whoever_drops_out_the_noise_of_those_that_stay_reaches_z(sites: int, share: float, honest: float) -> None:
    """A server that names more sites than there are makes each one's noise smaller, and must then find more of them."""
    rules = replace(RULES, share=max(share, honest), honest=min(share, honest), noise=1.0)  # as a config must have it
    stay = rules.threshold(sites)
    assert Codec(rules, MODEL, sites).noise_of(stay) >= 1.0
    assert 2 * stay > sites and stay >= 3  # so one site's two kinds of shares are never both complete


def test_weights_that_leave_few_sites_are_refused() -> None:
    weights = dict.fromkeys(range(9), 1.0)
    assert Terms.of(0, weights, SENT, {}).check(RULES) == 6
    one_less, two_less = (Terms.of(0, weights | dict.fromkeys(range(n), 0.0), SENT, {}) for n in (1, 2))
    assert one_less.check(replace(RULES, uneven=True)) == 6
    for terms, rules in ((one_less, RULES), (two_less, replace(RULES, uneven=True))):
        with pytest.raises(FedfewError, match=r"E422.*one of few sites"):
            terms.check(rules)
    with pytest.raises(FedfewError, match=r"E422.*too few"):
        Terms.of(0, {0: 1.0, 1: 1.0}, SENT, {}).check(RULES)
