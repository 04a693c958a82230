"""Claims: verdicts follow from numbers and their errors, and what the runs cannot show is not claimed."""

import math
from collections.abc import Mapping, Sequence
from statistics import stdev

import numpy as np
import pytest
from paper.arms import IID, LEVELS, MIXES, NON_IID, mix_label
from paper.claims import CLAIMS, partitions
from paper.measures import Agrees, Judge, Verdict
from paper.plan import arms_of
from paper.results import ArmResult, Results, last_scored
from tests.runs.own_runs import by_hand, flat

from fedfew.runs.intervals import Interval
from fedfew.runs.run import Run
from paper import measures

Key = tuple[str, str]
SE1 = math.sqrt(0.475 * 0.525 / 2000)  # one standard error of the paper's 47.5 %


def figure(
    name: str, accuracies: Mapping[Key, Sequence[float]], otherwise: Sequence[float] = (0.45, 0.45, 0.45)
) -> Results:
    """Every arm with one flat run a seed, on so many test images that the seeds alone make the error."""

    def run(accuracy: float, seed: int) -> Run:
        made = flat(accuracy, seed=seed, rounds=12)
        made.evaluation["images"] = 100_000
        return made

    arms = [(arm, accuracies.get(arm.key, otherwise)) for arm in arms_of(name)]
    return {arm.key: ArmResult(arm, tuple(run(a, s) for s, a in enumerate(own)), len(own)) for arm, own in arms}


def measured(mean: float, se: float | None) -> Interval:
    """An interval over four seeds, as wide as its standard error makes it; without an error, over one."""
    if se is None:
        return Interval(mean, None, 1, None, None, None)
    half = 3.182446 * se  # Student's t, 3 degrees of freedom, 97.5 %
    return Interval(mean, 2 * se, 4, se, mean - half, mean + half)


def about(verdicts: list[Verdict], words: str) -> Verdict:
    matching = [v for v in verdicts if words in v.claim]
    assert len(matching) == 1, [v.claim for v in verdicts]
    return matching[0]


def test_an_accuracys_error_is_that_of_the_seeds_or_of_the_test_images() -> None:
    arm = figure("fig6a", {("", "μ = 1"): (0.44, 0.46, 0.51)})["", "μ = 1"]
    m = measures.level(arm)
    assert m is not None
    assert m.se == pytest.approx(stdev([0.44, 0.46, 0.51]) / math.sqrt(3))
    assert m.high is not None and m.high - m.mean == pytest.approx(4.302653 * (m.se or 0.0))
    alone = figure("fig6a", {("", "μ = 1"): (0.475,)})["", "μ = 1"]
    alone.runs[0].evaluation["images"] = 2000
    single = measures.level(alone)
    assert single is not None
    assert single.se == pytest.approx(SE1)
    alone.runs[0].evaluation["images"] = 500
    known = measures.level(alone)
    assert known is not None
    assert known.se == pytest.approx(2 * SE1), "the images of the run's own evaluation count, if it has one"
    assert single.high is not None and single.high - single.mean == pytest.approx(2 * SE1)


def test_a_difference_takes_the_seeds_both_have() -> None:
    arms = figure("fig6a", {("", "μ = 1"): (0.5, 0.6, 0.8), ("", "μ = 10"): (0.4, 0.4)})
    m = measures.difference(arms["", "μ = 1"], arms["", "μ = 10"])
    assert m is not None
    assert m.mean == pytest.approx(0.15)
    assert m.n == 2
    assert m.se == pytest.approx(stdev([0.1, 0.2]) / math.sqrt(2))


def near_paper(m: Interval) -> tuple[Agrees, str]:
    return measures.near(m, 0.475)


def near_three_points(m: Interval) -> tuple[Agrees, str]:
    return measures.near_gain(m, 0.03, 0.475)


BOTH = math.hypot(0.01, SE1)  # our error and the paper's


@pytest.mark.parametrize(
    ("judge", "mean", "se", "agrees", "words"),
    [
        (near_paper, 0.475 - 1.9 * BOTH, 0.01, "yes", ""),
        (near_paper, 0.475 + 2.1 * BOTH, 0.01, "no", "Does not hold here: 3.1 points above"),
        (near_three_points, 0.03, 0.0025, "yes", ""),
        (near_three_points, 0.01, 0.01, "undecided", "so would no gain"),
        (near_three_points, 0.12, 0.005, "no", "larger (standard error 0.5 points); the direction holds"),
        (near_three_points, -0.05, 0.005, "no", "the direction is the opposite"),
        (measures.positive, 0.05, 0.005, "yes", ""),  # 5 ± 1.6
        (measures.positive, -0.05, 0.005, "no", ""),
        (
            measures.positive,
            0.01,
            0.005,
            "undecided",
            "Not significant (standard error 0.5 points, 95 % interval -0.6 to +2.6)",
        ),
        (measures.positive, 0.01, None, "undecided", "no standard error from one seed"),
    ],
)
def test_a_number_counts_if_it_is_beyond_its_error(
    judge: Judge, mean: float, se: float | None, agrees: str, words: str
) -> None:
    judged = judge(measured(mean, se))
    assert judged[0] == agrees and words in judged[1]


@pytest.fixture
def full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the tiny runs for ones of the paper's size."""
    for name in ("WIDTH", "UNLABELED", "ROUNDS"):
        monkeypatch.setattr(measures, name, 0)


def test_a_smaller_experiment_says_nothing_about_levels() -> None:
    verdict = about(CLAIMS["fig4"](figure("fig4", {(NON_IID, "FedMix + FedFreq"): (0.475,)})), "47.5")
    assert verdict.agrees == "undecided"
    assert verdict.words == "Not comparable: the paper has width 64, 55,000 images, 150 rounds"


PAPERS: dict[Key, Sequence[float]] = {
    (panel, arm): values
    for panel in (IID, NON_IID)
    for arm, values in {
        "FedMix + FedFreq": (0.470, 0.475, 0.480),
        "FedMix + FedAvg": (0.460, 0.465, 0.469),
        "FedMatch + FedAvg": (0.441, 0.445, 0.449),
        "FedMatch + FedFreq": (0.441, 0.445, 0.449),
    }.items()
}
WORSE: dict[Key, Sequence[float]] = {
    (IID, "FedMix + FedAvg"): (0.40, 0.41, 0.42),
    (NON_IID, "FedMix + FedAvg"): (0.40, 0.41, 0.42),
    (NON_IID, "FedMix + FedFreq"): (0.38, 0.39, 0.40),
}
BEST: dict[Key, Sequence[float]] = {(NON_IID, mix_label(MIXES[1])): (0.47, 0.48, 0.49)}
OTHER_BEST = BEST | {(NON_IID, mix_label(MIXES[3])): (0.50, 0.51, 0.52)}
LABELS: dict[Key, Sequence[float]] = {
    ("", "FedMix, 800 labels"): (0.465, 0.470, 0.475),
    ("", "FedMatch, 800 labels"): (0.446, 0.449, 0.455),
    ("", "FedMix, 700 labels"): (0.42, 0.43, 0.43),
}


@pytest.mark.usefixtures("full_size")
@pytest.mark.parametrize(
    ("name", "accuracies", "claim", "agrees", "words"),
    [
        ("fig4", PAPERS, "47.5", "yes", ""),
        ("fig4", PAPERS, "each time", "yes", ""),
        ("fig4", PAPERS, "faster early", "yes", ""),
        ("fig4", PAPERS, "steadier", "undecided", ""),  # flat curves: 0 either way
        ("fig4", WORSE, "47.5", "no", "Does not hold here: 8.5 points below"),
        ("fig4", WORSE, "each time", "no", "IID, FedAvg"),
        ("fig4", WORSE, "each time", "no", "Not significant for IID, FedFreq"),
        ("fig4", WORSE, "FedFreq suits", "no", ""),
        ("fig5", BEST, "best weights", "yes", ""),
        ("fig5", BEST, "close to each other", "undecided", ""),
        ("fig5", OTHER_BEST, "best weights", "no", "α=0.3 β=0.5 γ=0.2 is better by 3.0 points"),
        ("fig6b", LABELS, "47 %", "yes", ""),
        ("fig6b", LABELS, "2 points over", "yes", ""),
        ("fig6b", LABELS, "700", "yes", ""),
        ("fig6b", LABELS | {("", "FedMix, 700 labels"): (0.4605, 0.4650, 0.4701)}, "700", "no", "less than 1 point"),
        ("extra", {("", "FedMix + FedFreq"): (0.50, 0.51, 0.50)}, "FedFreq minus FedAvg", "yes", ""),
    ],
)
def test_claims_are_judged_by_the_numbers(
    name: str, accuracies: Mapping[Key, Sequence[float]], claim: str, agrees: str, words: str
) -> None:
    verdict = about(CLAIMS[name](figure(name, accuracies)), claim)
    assert verdict.agrees == agrees and words in verdict.words
    if (accuracies, claim) == (PAPERS, "47.5"):
        assert (verdict.got, verdict.source) == ("47.5 % ± 0.5 (3 seeds)", "Experiment Results, Fig. 4")
        assert verdict.error == pytest.approx(0.005 / math.sqrt(3))


@pytest.mark.parametrize("name", CLAIMS)
def test_without_runs_nothing_is_claimed(name: str) -> None:
    empty = {arm.key: ArmResult(arm, (), 3) for arm in arms_of(name)}
    assert {v.agrees for v in CLAIMS[name](empty)} == {"no runs yet"}
    assert measures.gains(empty) == {}


def test_numbers_of_unfinished_runs_are_marked() -> None:
    arms = figure("fig6b", {})
    key = ("", "FedMix, 800 labels")
    arms[key] = ArmResult(arms[key].arm, (by_hand([0.4] * 4, finished=False),), 3)
    judged = CLAIMS["fig6b"](arms)
    assert about(judged, "47 %").partial
    assert about(judged, "2 points over").partial
    assert not any(v.partial for v in CLAIMS["fig6b"](figure("fig6b", {})))


def test_roughness_and_the_early_rounds() -> None:
    run = by_hand([0.1, 0.3, 0.2, 0.4, 0.4, 0.5], rounds=6)
    assert measures.roughness(run) == pytest.approx((0.0 + 0.1) / 2)  # 0.4, 0.4, 0.5
    assert measures.roughness(run, 0.0, 0.5) == pytest.approx((0.2 + 0.1) / 2)  # 0.1, 0.3, 0.2
    assert measures.early(run) == pytest.approx((0.1 + 0.3) / 2)
    assert measures.roughness(by_hand([0.1])) is None
    run, cut = by_hand([0.1, 0.2, 0.3, 0.5]), by_hand([0.1, 0.2, 0.3], finished=False)
    run.records[1]["accuracy"] = run.records[2]["accuracy"] = cut.records[2]["accuracy"] = None  # not scored
    assert measures.roughness(run, 0.0) == pytest.approx(0.4)
    assert (last_scored(run), last_scored(cut)) == (4, 2)


def test_partitions_are_held_to_the_papers_sizes_and_classes() -> None:
    uneven = np.zeros((4, 10), np.int64)
    uneven[0, 0] = 10  # of 550 on average, scaled: 20 images of one class
    uneven[1:, :] = 36
    even = np.full((4, 10), 27, np.int64)
    verdicts = partitions({0.1: uneven, 10.0: even})
    assert [v.agrees for v in verdicts] == ["yes", "yes", "yes"]
    mean_size = (10 + 3 * 360) / 4
    assert verdicts[0].got == f"{550 * 360 / mean_size:.0f} and {550 * 10 / mean_size:.0f}, scaled to 550"
    assert [v.agrees for v in partitions({0.1: even, 10.0: uneven})] == ["yes", "yes", "no"]
    assert [v.agrees for v in partitions({0.1: even})] == ["no", "no", "yes"]
    assert LEVELS[0] == 0.1
