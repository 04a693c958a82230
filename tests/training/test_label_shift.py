"""Pseudo-labels: the vote over views, and a client's own class prior by EM."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfew
from fedfew.training.label_shift import TEMPERATURES, calibrated_temperature, em_prior, shifted, tempered
from fedfew.training.vote import Ballot, can_reach_threshold, vote

SERVER = torch.tensor([0.25, 0.25, 0.5])


def calibrated(shares: list[float], count: int, seed: int = 0, spread: float = 1.2) -> tuple[Tensor, Tensor]:
    """Outputs of a perfectly calibrated model for SERVER's prior, on points drawn with other class shares.

    Class c is a Gaussian on the line at c; Bayes' rule with SERVER's prior is the calibrated posterior.
    """
    rng = np.random.default_rng(seed)
    truth = rng.choice(3, count, p=shares)
    x = rng.normal(truth, 1 / spread)
    density = np.exp(-0.5 * (spread * (x[:, None] - np.arange(3))) ** 2) * SERVER.numpy()
    return torch.from_numpy((density / density.sum(1, keepdims=True)).astype(np.float32)), torch.from_numpy(truth)


@pytest.mark.parametrize(("shares", "gain"), [([0.8, 0.15, 0.05], 0.1), (SERVER.tolist(), -0.01)])
def test_em_recovers_a_prior_and_labels_better_where_it_is_shifted(shares: list[float], gain: float) -> None:
    q, truth = calibrated(shares, 20_000)
    adjusted, prior = em_prior(q, SERVER, 1.0, 200, 0.0)
    assert prior.numpy() == pytest.approx(shares, abs=0.02)
    plain, em = (q.argmax(1) == truth).float().mean(), (adjusted.argmax(1) == truth).float().mean()
    assert em > plain + gain


def test_one_step_by_hand() -> None:
    q = torch.tensor([[0.6, 0.4], [0.8, 0.2]])
    start = torch.tensor([0.5, 0.5])
    adjusted, prior = em_prior(q, start, 1.0, 1, 2.0)
    mean = [0.7, 0.3]  # the first responsibilities are q itself
    by_hand = [(2 * m + 2 * 0.5) / (2 + 2) for m in mean]
    assert prior.tolist() == pytest.approx(by_hand)
    ratio = [p / 0.5 for p in by_hand]
    first = 0.6 * ratio[0] / (0.6 * ratio[0] + 0.4 * ratio[1])
    assert adjusted[0, 0].item() == pytest.approx(first)


@pytest.mark.parametrize(("steps", "concentration"), [(0, 3.0), (30, 1e12), (30, float("inf"))])
def test_no_steps_and_a_strong_prior_change_nothing(steps: int, concentration: float) -> None:
    q, _ = calibrated([0.9, 0.05, 0.05], 50)
    adjusted, prior = em_prior(q, SERVER, 1.0, steps, concentration)
    assert torch.allclose(prior, SERVER, atol=1e-6)
    assert torch.allclose(adjusted, q, atol=1e-5)


def test_the_estimate_lies_between_server_and_unbound_estimate() -> None:
    q, _ = calibrated([0.9, 0.05, 0.05], 200)
    free = em_prior(q, SERVER, 1.0, 30, 0.0)[1]
    bound = em_prior(q, SERVER, 1.0, 30, 100.0)[1]
    assert SERVER[0] < bound[0] < free[0]


def test_temperature_flattens() -> None:
    p = torch.tensor([[0.9, 0.1]])
    assert tempered(p, 2.0)[0, 0].item() == pytest.approx(0.9**0.5 / (0.9**0.5 + 0.1**0.5))
    assert torch.equal(tempered(p, 1.0), p)
    sharp = tempered(torch.tensor([[1.0, 0.0]]), 2.0)
    assert torch.isfinite(sharp).all()
    assert sharp[0, 0] > 0.999


def test_a_class_without_server_labels_stays_out_and_nothing_is_nan() -> None:
    q = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    adjusted, prior = em_prior(q, torch.tensor([0.5, 0.5, 0.0]), 1.5, 30, 0.0)
    assert torch.isfinite(adjusted).all()
    assert torch.isfinite(prior).all()
    assert float(prior[2]) == 0


def test_a_client_without_images_has_the_servers_prior() -> None:
    adjusted, prior = em_prior(torch.empty(0, 3), SERVER, 1.5, 30, 0.0)
    assert adjusted.shape == (0, 3)
    assert torch.allclose(prior, SERVER)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 40), st.floats(0.5, 3.0), st.floats(0, 50))
def test_always_distributions_and_likelihood_never_falls(
    seed: int, classes: int, count: int, temperature: float, concentration: float
) -> None:
    rng = np.random.default_rng(seed)
    q = torch.from_numpy(rng.dirichlet(np.ones(classes), count))
    start = torch.from_numpy(rng.dirichlet(5 * np.ones(classes)))
    adjusted, prior = em_prior(q, start, temperature, 20, concentration)
    assert torch.allclose(adjusted.sum(1), torch.ones(count, dtype=torch.float64))
    assert float(prior.sum()) == pytest.approx(1)
    before = em_prior(q, start, 1.0, 5, 0.0)[1]
    after = em_prior(q, start, 1.0, 6, 0.0)[1]

    def log_likelihood(pi: Tensor) -> float:
        return float((q * (pi / start)).sum(1).log().sum())

    assert log_likelihood(after) >= log_likelihood(before) - 1e-9


def test_shifted_is_bayes_rule() -> None:
    q, prior, start = torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.9]), torch.tensor([0.5, 0.5])
    assert shifted(q, prior, start)[0].item() == pytest.approx(0.06 / (0.06 + 0.36))


@pytest.mark.parametrize("accuracy", [0.4, 0.6, 0.8])
def test_an_honest_model_is_as_sure_as_it_is_right(accuracy: float) -> None:
    q = torch.randn(200, 10, generator=torch.Generator().manual_seed(0)).mul(4).softmax(1)
    temperature = calibrated_temperature(q, accuracy)
    assert float(tempered(q, temperature).amax(1).mean()) == pytest.approx(accuracy, abs=1e-4)


def test_an_honest_temperature_stays_within_its_bounds() -> None:
    sure = torch.eye(10).clamp_min(1e-9)
    assert calibrated_temperature(sure, 0.11) == pytest.approx(TEMPERATURES[1])
    assert calibrated_temperature(torch.full((4, 10), 0.1), 0.9) == pytest.approx(TEMPERATURES[0])


# A = 2 views of B = 3 images in C = 3 classes; eighths, so that every mean is exact
VIEWS = torch.tensor(
    [
        [[0.750, 0.125, 0.125], [0.125, 0.750, 0.125], [0.500, 0.250, 0.250]],
        [[0.250, 0.625, 0.125], [0.125, 0.875, 0.000], [0.250, 0.125, 0.625]],
    ]
)
# means:       .500  .375   .125     .125   .8125  .0625    .375   .1875  .4375


def test_the_mean_of_the_views_decides() -> None:
    labels, keep = vote(VIEWS, 0.6)
    assert labels.tolist() == [0, 1, 2]  # view 2 alone would say 1, 1, 2 and view 1 alone 0, 1, 0
    assert keep.tolist() == [False, True, False]
    assert fedfew.vote is vote


def test_the_threshold_is_inclusive_and_on_the_mean_not_the_sum() -> None:
    assert vote(VIEWS, 0.5)[1].tolist() == [True, True, False]
    assert vote(VIEWS, 0.5 + 2**-20)[1].tolist() == [False, True, False]
    assert vote(VIEWS, 0.8125)[1].tolist() == [False, True, False]
    assert vote(VIEWS, 0.0)[1].all() and not vote(VIEWS, 1.0)[1].any()


def test_the_mask_may_look_at_the_first_view_alone() -> None:
    labels, keep = vote(VIEWS, 0.75, mask_on="first")
    assert labels.tolist() == [0, 1, 2]  # the label is the mean's all the same
    assert keep.tolist() == [True, True, False]  # first views: .75, .75, .5


def test_a_ballot_keeps_the_last_vote_on_each_image() -> None:
    ballot = Ballot(4)
    assert ballot.votes.tolist() == [-1] * 4 and ballot.coverage == 0.0
    ballot.record(torch.tensor([3, 0]), torch.tensor([7, 8]), torch.tensor([True, False]))
    assert ballot.votes.tolist() == [-1, -1, -1, 7]
    ballot.record(torch.tensor([0, 3]), torch.tensor([2, 5]), torch.tensor([True, False]))
    assert ballot.votes.tolist() == [2, -1, -1, -1]
    assert ballot.coverage == 1 / 4
    ballot.record(torch.tensor([1]), torch.tensor([0]), torch.tensor([True]))
    assert ballot.coverage == 2 / 4, "the first class counts like the others"
    assert Ballot(0).coverage == 0.0


@pytest.mark.parametrize("mask_on", ["mean", "first"])
@pytest.mark.parametrize("threshold", [0.75, 0.8, 0.95])
def test_images_without_hope_are_exactly_those_that_no_further_view_can_lift(threshold: float, mask_on: str) -> None:
    rng = torch.Generator().manual_seed(0)
    views = (torch.randn(5, 4000, 4, generator=rng) * 2).softmax(2)
    hope = can_reach_threshold(views[:2], 5, threshold, mask_on)
    labels, keep = vote(views, threshold, mask_on)
    assert 0 < int(hope.sum()) < 4000 and not (keep & ~hope).any()
    without = torch.where(hope[:, None], views, torch.cat([views[:2], torch.zeros(3, 4000, 4)]))
    again, kept = vote(without, threshold, mask_on)
    assert torch.equal(kept, keep) and torch.equal(again[keep], labels[keep])
    # and whoever has hope is lifted by views that are sure of the leading class
    leading = views[:2].sum(0).argmax(1)
    sure = torch.cat([views[:2], torch.nn.functional.one_hot(leading, 4).float().expand(3, -1, -1)])
    assert torch.equal(vote(sure, threshold - 1e-3, mask_on)[1] & hope, hope)
