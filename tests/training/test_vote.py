"""The argmax vote (Eq. 8): the mean of A softmaxes decides, and counts from τ on."""

import pytest
import torch

import fedfew
from fedfew.training.vote import Ballot, can_reach_threshold, vote

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
