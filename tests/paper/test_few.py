"""The few-labels study: one thing changed at a time, bounds shared, goals judged by the numbers."""

from collections.abc import Mapping, Sequence

import pytest
from paper.few import OURS, SETTINGS, STEPS, VIEWS, few_labels
from paper.goals import at_sites, by_skew
from paper.measures import Verdict
from paper.plan import Plan, arms_of, cells, in_order
from paper.results import ArmResult, Results
from tests.runs.own_runs import flat

Key = tuple[str, str]
ALONE = "server-only"


def results(name: str, accuracies: Mapping[Key, Sequence[float]]) -> Results:
    """Arms with one flat run for each accuracy, and no run otherwise."""
    arms = {}
    for arm in arms_of(name):
        runs = tuple(
            flat(a, seed=seed, name=f"{arm.title} {seed}") for seed, a in enumerate(accuracies.get(arm.key, ()))
        )
        for run in runs:
            run.evaluation["images"] = 100_000
        arms[arm.key] = ArmResult(arm, runs, 3)
    return arms


def about(verdicts: Sequence[Verdict], words: str) -> Verdict:
    (matching,) = (v for v in verdicts if words in v.claim)
    return matching


def test_bounds_are_run_once_for_all_partitions_and_clients() -> None:
    once = in_order(cells(Plan(seeds=1, first_seed=100), ["few-labels"]))
    names = [cell.config.method_name for cell in once]
    assert names.count("server-only") == names.count("pooled") == 4  # numbers of labels
    assert names.count("fedmoments") == 8  # the 40 labels at μ = 0.1 are in both tables
    assert {cell.config.document["seed"] for cell in once} == {100}


def test_a_setting_changes_the_base_in_what_its_title_says() -> None:
    arms = {arm.key: arm.overrides for arm in arms_of("sites")}
    assert arms["10 clients, μ = 0.1", OURS]["clients"] == 10
    assert "clients" not in arms["10 clients, μ = 0.1", ALONE]  # the labels alone have no clients
    assert arms["ten strong, alike", OURS]["dataset.mu"] == 1000
    assert arms["ten strong, alike", VIEWS]["labels"] == 22 * 40
    assert len({setting.title for own in SETTINGS.values() for setting in own}) == sum(map(len, SETTINGS.values()))
    steps = {arm.label: arm.recipe["client.lr"] for setting in few_labels() for arm in setting.arms() if arm.recipe}
    assert steps == STEPS


@pytest.mark.parametrize(
    ("ours", "agrees", "words"),
    [((0.75, 0.76, 0.77), "yes", "worst seed +25.0"), ((0.74, 0.75, 0.76), "no", "worst seed +24.0")],
)
def test_a_goal_is_met_by_the_mean_and_names_the_worst_seed(ours: Sequence[float], agrees: str, words: str) -> None:
    arms = results("few-labels", {("μ = 0.1", OURS): ours, ("μ = 0.1", ALONE): (0.5, 0.5, 0.5)})
    verdict = about(by_skew(arms), "25.5 points")
    assert verdict.agrees == agrees and words in verdict.words
    assert about(by_skew(arms), "kB").got == "0 kB at most"  # 6,000 bytes in three rounds, of TINY's clients
    assert verdict.kind == "our goal"


def test_harm_is_found_wherever_it_is() -> None:
    odd, equal = "two of ten odd, alike", "no scanners, alike"
    arms = results(
        "sites",
        {
            (odd, OURS): (0.60, 0.58), (odd, ALONE): (0.5, 0.5),
            (equal, OURS): (0.62, 0.63), (equal, ALONE): (0.5, 0.65),
        },
    )  # fmt: skip
    judged = at_sites(arms)
    against = about(judged, "two of ten odd, alike")
    assert (against.got, against.agrees) == ("-2.0, -5.0 points (seeds 0, 1)", "no")
    worst = about(judged, "no single run")
    assert (worst.got, worst.agrees) == ("-2.0 points (no scanners, alike, seed 1)", "no")
    assert worst.words == "1 of 4 runs are further below"
