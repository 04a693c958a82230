"""Comparisons: intervals by Student's t, pairs by seed, and a note or a refusal wherever a table could mislead."""

import csv
import io
import math
from statistics import mean, stdev
from typing import Any

import pytest
from tests.runs.own_runs import by_hand, flat

from fedfew.core.errors import FedfewError
from fedfew.runs.intervals import Interval
from fedfew.studies.bounds import TUNED
from fedfew.studies.compare import Comparison, Row, compare
from fedfew.studies.tables import accuracy_text, as_json, difference_text, to_csv, to_latex, to_markdown

T2 = 4.302653  # Student's t, 2 degrees of freedom, 97.5 %
SERVER_ONLY: dict[str, Any] = {"method__name": "server-only"}


def row(found: Comparison, **key: object) -> Row:
    wanted = {name.replace("__", "."): value for name, value in key.items()}
    rows = [r for r in found.rows if all(r.key.get(name) == value for name, value in wanted.items())]
    assert len(rows) == 1, found.rows
    return rows[0]


def three_seeds(ours: tuple[float, ...] = (0.44, 0.50, 0.53)) -> Comparison:
    runs = [flat(a, seed=s) for s, a in enumerate(ours)]
    return compare([*runs, *(flat(a, seed=s, **SERVER_ONLY) for s, a in enumerate((0.40, 0.44, 0.48)))])


def test_traffic_of_a_round_stands_beside_the_accuracy() -> None:
    found = three_seeds()
    assert [(r.bytes_up, r.bytes_down) for r in found.rows] == [(2000.0, 2500.0)] * 2  # 1000, 2000, 3000 up
    told = list(csv.DictReader(io.StringIO(to_csv(found).decode())))
    assert {(r["bytes_up"], r["bytes_down"]) for r in told} == {("2000.0", "2500.0")}
    assert as_json(found)["rows"][0]["bytes_up"] == 2000.0
    assert to_latex(found).count("& 2.0 kB / 2.5 kB") == 2


def test_the_difference_is_paired_by_seed() -> None:
    found = row(three_seeds(), method__name="fedmix").difference
    gains = [0.44 - 0.40, 0.50 - 0.44, 0.53 - 0.48]
    assert found is not None
    assert found.mean == pytest.approx(mean(gains))
    half = T2 * stdev(gains) / math.sqrt(3)
    assert found.low == pytest.approx(mean(gains) - half)
    assert found.significant  # 5 ± 2.5 points, though the two intervals themselves overlap


def test_what_could_be_chance_is_called_so() -> None:
    found = row(three_seeds(ours=(0.44, 0.43, 0.52)), method__name="fedmix")
    assert found.difference is not None
    assert found.significant is False and found.p == pytest.approx(0.296, abs=0.001)
    worse = row(three_seeds(ours=(0.30, 0.34, 0.38)), method__name="fedmix")
    assert worse.difference is not None
    assert worse.difference.significant
    assert difference_text(worse, "server-only").startswith("-10.0")


def test_pairs_have_equal_seeds_of_training_and_split() -> None:
    ours = [flat(0.5, seed=0), flat(0.6, seed=1)]
    base = [flat(0.4, seed=1, **SERVER_ONLY), flat(0.1, seed=0, **SERVER_ONLY | {"dataset__seed": 7})]
    found = row(compare([*ours, *base]), method__name="fedmix")
    assert found.difference is not None
    assert found.difference.mean == pytest.approx(0.2)
    assert (found.difference.low, found.difference.n) == (None, 1)
    assert any("seed 0" in note for note in compare([*ours, *base]).notes)


def test_one_seed_has_no_interval_and_that_is_told() -> None:
    found = compare([flat(0.5), flat(0.4, **SERVER_ONLY)])
    assert any("Fewer than three seeds" in note for note in found.notes)
    ours = row(found, method__name="fedmix")
    assert (ours.accuracy.low, ours.accuracy.high) == (None, None)
    assert accuracy_text(ours.accuracy) == "50.0"
    assert difference_text(ours, "server-only") == "+10.0"
    two = compare([flat(a, seed=s) for s, a in enumerate((0.5, 0.7))])
    assert accuracy_text(two.rows[0].accuracy) == "50.0, 70.0" and two.rows[0].accuracy.low is None
    assert as_json(found)["rows"][0]["significant"] is None


def test_without_server_only_there_is_no_difference() -> None:
    found = compare([flat(0.5, seed=0), flat(0.6, seed=1)])
    assert found.rows[0].difference is None
    assert any("no server-only run" in note.lower() for note in found.notes)
    assert difference_text(found.rows[0], "server-only") == "no pair"


def test_server_only_does_not_depend_on_partition_or_aggregator() -> None:
    runs = [flat(0.5, seed=s, partition__mu=mu) for s in (0, 1) for mu in (0.1, 1.0)]
    base = [flat(0.4, seed=s, partition__mu=mu, **SERVER_ONLY) for s in (0, 1) for mu in (0.1, 1.0)]
    found = compare([*runs, *base])
    assert found.by == ("method.name", "partition.mu")
    assert row(found, method__name="server-only").accuracy.n == 2  # its two runs of a seed are the same experiment
    assert row(found, partition__mu=0.1, method__name="fedmix").difference is not None
    assert len(found.left_out) == 2
    assert all("the same experiment" in why for why in found.left_out.values())


def test_a_cross_product_of_seeds_counts_once_for_each_split() -> None:
    """Splits 0 and 1 with two seeds of training each: means 0.5 and 0.7, so n = 2 and the mean is 0.6."""
    levels = [(0, 0, 0.4), (1, 0, 0.6), (0, 1, 0.6), (1, 1, 0.8)]
    found = compare([flat(a, seed=s, dataset__seed=split) for s, split, a in levels])
    assert found.rows[0].accuracy.n == 2 and found.rows[0].accuracy.mean == pytest.approx(0.6)
    assert found.rows[0].accuracy.sd == pytest.approx(0.2 / 2**0.5)
    assert not any("training alone" in note for note in found.notes)


def test_one_split_for_all_seeds_is_told() -> None:
    found = compare([flat(0.4, seed=s, dataset__seed=0) for s in range(3)])
    assert found.rows[0].accuracy.n == 3 and any("training alone" in note for note in found.notes)


def test_runs_with_the_same_seeds_are_no_repetitions() -> None:
    levels = ((0, 0.1, 0.4), (0, 1.0, 0.5), (1, 0.1, 0.6), (1, 1.0, 0.7))
    found = compare([flat(a, seed=s, partition__mu=mu) for s, mu, a in levels], ["method"])
    accuracy = found.rows[0].accuracy
    assert accuracy.mean == pytest.approx(0.55)
    assert accuracy.n == 2
    assert accuracy.sd == pytest.approx(stdev([0.45, 0.65]))
    assert any("differ in partition.mu" in note for note in found.notes)


def test_by_default_rows_are_what_differs() -> None:
    runs = [flat(0.5), flat(0.5, aggregator__name="fedavg"), flat(0.5, server__lr=0.1), flat(0.6, rounds=4)]
    assert compare(runs).by == ("method.name", "rounds", "aggregator.name", "server.lr")


def test_settings_of_one_method_do_not_split_another() -> None:
    ours = flat(0.5, method__threshold=0.5, aggregator__name="fedavg")
    theirs = flat(0.5, method__name="fedmatch", method__threshold=0.75, aggregator__name="fedavg")
    found = compare([ours, theirs])
    assert found.by == ("method.name",)


def test_short_names_and_unknown_keys() -> None:
    assert compare([flat(0.5)], ["method", "partition", "availability"]).by == (
        "method.name", "partition.kind", "availability.kind",
    )  # fmt: skip
    with pytest.raises(FedfewError, match=r"E104.*did you mean partition\.mu"):
        compare([flat(0.5)], ["partition.nu"])


def test_a_row_that_averages_over_methods_says_so() -> None:
    runs = [flat(0.4, seed=s, method__name=name) for s in range(3) for name in ("fedmix", "semifl")]
    assert not [note for note in compare(runs).notes if "averages" in note]
    (note,) = [note for note in compare(runs, ["rounds"]).notes if "averages" in note]
    assert note.endswith("averages over runs that differ in method.name: add them to --by")


def test_rows_over_different_seeds_are_told() -> None:
    runs = [flat(0.4 + s / 100, seed=s, method__name=name) for s in range(3) for name in ("fedmix", "semifl")]
    assert not any("different seeds" in note for note in compare(runs).notes)
    assert any("different seeds" in note for note in compare(runs[:-1]).notes)


def test_datasets_are_not_mixed() -> None:
    runs = [flat(0.5), flat(0.5, dataset__name="mnist")]
    with pytest.raises(FedfewError, match=r"E114.*mini-mnist, mnist"):
        compare(runs, ["method"])
    with pytest.raises(FedfewError, match=r"E114.*dataset\.test"):
        compare([flat(0.5), flat(0.5, dataset__test=200)], ["method"])
    assert len(compare(runs, ["dataset"]).rows) == 2


def test_unfinished_runs_are_named_and_left_out() -> None:
    runs = [flat(0.5), by_hand([0.1, 0.2], finished=False, seed=1, name="half")]
    found = compare(runs)
    assert found.left_out == {"half": "not finished, at round 2 of 7"}
    assert found.rows[0].accuracy.n == 1
    # the tiny config's rounds differ with the curve, so the row is asked for by method
    part = compare(runs, ["method"], partial=True)
    assert part.rows[0].accuracy.mean == pytest.approx((0.5 + 0.2) / 2)
    assert part.rows[0].partial
    assert any("not finished, at round 2 of 7" in note for note in part.notes)


def test_nothing_to_compare() -> None:
    with pytest.raises(FedfewError, match=r"E310.*half"):
        compare([by_hand([0.1], finished=False, name="half")])
    with pytest.raises(FedfewError, match="E310"):
        compare([])


def test_a_run_counts_once_and_its_finished_copy_first() -> None:
    again = by_hand([0.2, 0.2], finished=False, name="copy", rounds=3)
    found = compare([again, flat(0.5, rounds=3)], partial=True)
    assert found.rows[0].accuracy == Interval.of([0.5])
    assert "the same experiment" in found.left_out["copy"]


@pytest.mark.parametrize(
    ("own", "other", "key"),
    [
        ({"server__lr": 0.1}, {"server__lr": 0.2}, "server.lr"),
        ({"server__epochs": 15}, {"server__epochs": 40}, "server.epochs"),
        ({"evaluate__ema": 0.5}, {"evaluate__ema": 0.0}, "evaluate.ema"),
        ({"engine__autocast": "bfloat16"}, {"engine__autocast": "off"}, "engine.autocast"),
        ({"start": "runs/a"}, {"start": ""}, "start"),
        ({"method__name": "fedavg", "method__warmup": 30}, {}, "method.warmup"),
        ({}, {"method__warmup": 50}, "method.warmup"),
        ({"method__name": "fedavg", "method__order": "before"}, {}, "method.order"),  # scored before the server's turn
    ],
)
def test_no_paired_difference_across_settings(own: dict[str, Any], other: dict[str, Any], key: str) -> None:
    found = compare([flat(0.5, **own), flat(0.4, **other, **SERVER_ONLY)], ["method"])
    assert row(found, method__name=own.get("method__name", "fedmix")).difference is None
    assert any("another setting" in note and key in note for note in found.notes)


@pytest.mark.parametrize("own", [{}, {"method__name": "fedavg"}, {"method__name": "semifl", "method__warmup": 1}])
@pytest.mark.parametrize("turns", [0, 1])
def test_one_turn_of_the_server_before_the_first_round_may_differ(own: dict[str, Any], turns: int) -> None:
    one_turn = flat(0.5).flat["server.epochs"]
    found = compare([flat(0.5, **own), flat(0.4, method__warmup=turns * one_turn, **SERVER_ONLY)], ["method"])
    assert row(found, method__name=own.get("method__name", "fedmix")).difference == Interval.of([0.5 - 0.4])


def test_other_labels_or_rounds_are_no_pair() -> None:
    for key in ({"labels": 10}, {"rounds": 5}, {"model__width": 8}):
        found = compare([flat(0.5), flat(0.4, **SERVER_ONLY | key)])
        assert row(found, method__name="fedmix").difference is None
        assert any("no server-only run like" in note for note in found.notes)


def test_latex_is_a_booktabs_table_and_markdown_one_to_paste() -> None:
    runs = [flat(0.5, seed=s, method__mask_on=how) for s in (0, 1) for how in ("mean", "first")]
    found = compare([*runs, flat(0.4, seed=0, **SERVER_ONLY), flat(0.5, seed=1, **SERVER_ONLY)])
    lines = to_latex(found).splitlines()
    assert lines[:2] == ["\\begin{tabular}{llrrrrr}", "\\toprule"]
    assert lines[2].startswith("method & settings & accuracy in \\%")
    assert {line.count(" & ") for line in lines if line.endswith("\\\\")} == {6}
    assert "\\bottomrule" in lines
    assert "server-only &  & 40.0, 50.0 & -- & -- & 2 & 2.0 kB / 2.5 kB \\\\" in lines
    assert "method.mask\\_on" in "".join(lines) and "$+$10.0, $+$0.0" in "".join(lines)
    head, rule, *rest = to_markdown(found).splitlines()
    assert head.count("|") == rule.count("|") == rest[0].count("|") == 8 and "fedmix\\*" in rest[0]


def test_any_method_can_be_the_reference() -> None:
    """fedavg against fedmix by seed: −4, −6, −5 points, wherever the clients' own settings differ."""
    theirs = [flat(a, seed=s, method__name="fedavg", client__lr=0.5) for s, a in enumerate((0.40, 0.44, 0.48))]
    ours = [flat(a, seed=s) for s, a in enumerate((0.44, 0.50, 0.53))]
    gap = row(compare([*ours, *theirs], against="fedmix"), method__name="fedavg").difference
    assert gap is not None and gap.values == pytest.approx((-0.04, -0.06, -0.05))
    other = [flat(0.6, seed=s, method__threshold=0.3) for s in range(3)]
    several = compare([*ours, *other, *theirs], against="fedmix")
    assert row(several, method__name="fedavg").difference is None  # which of the two would be chosen?
    assert any("several settings (method.threshold)" in note for note in several.notes)
    with pytest.raises(FedfewError, match=r"E103.*fedmix, fedavg"):
        compare([*ours, *theirs], against="semifl")


def test_p_values_are_corrected_for_all_rows_and_seeds_needed_are_told() -> None:
    base = [flat(a, seed=s, **SERVER_ONLY) for s, a in enumerate((0.40, 0.44, 0.48))]
    ours = [flat(a, seed=s) for s, a in enumerate((0.44, 0.50, 0.53))]  # p = 0.013
    theirs = [flat(a, seed=s, method__name="fedavg") for s, a in enumerate((0.44, 0.43, 0.52))]  # p = 0.30
    found = compare([*base, *ours, *theirs])
    first, second = row(found, method__name="fedmix"), row(found, method__name="fedavg")
    assert first.difference is not None and first.p == pytest.approx(2 * (first.difference.p or 0))
    assert (first.significant, second.significant) == (True, False)
    assert any("2 comparisons (Holm)" in note for note in found.notes)
    assert any("Seeds needed" in note and "fedavg 15" in note for note in found.notes), found.notes


def test_unequal_effort_is_told() -> None:
    ours = flat(0.5)
    vars(ours)["environment"] = {"tuned": "best of 20 trials by validation"}
    found = compare([ours, flat(0.4, **SERVER_ONLY)])
    assert any(note.startswith("Unequal effort: fedmix: best of 20 trials") for note in found.notes)
    lower = flat(0.4, **SERVER_ONLY)
    for one, keys in ((ours, "client.lr, server.lr"), (lower, "server.lr")):
        vars(one)["environment"] = {"tuned": TUNED.format(5, keys)}
    assert any(note.startswith("Equal effort: fedmix: best of 5 trials") for note in compare([ours, lower]).notes)
