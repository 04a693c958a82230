"""The first screen of page and report: a sentence, bars beside the bounds, and no chart without a value."""

from pathlib import Path

import pytest
from tests.interface.fedfew_command import record, small_run, written_run

from fedfew.interface.charts.run_charts import figures_of
from fedfew.interface.report import write_report
from fedfew.interface.report.comparison import tables
from fedfew.interface.report.standing import no_verdict, standing
from fedfew.interface.report.words import marked
from fedfew.runs.collection import read_all
from fedfew.runs.run import Run
from fedfew.studies.bounds import bounds_of


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and its server-only pair, both finished."""
    folder = tmp_path_factory.mktemp("pair")
    small_run(folder / "mix")
    small_run(folder / "lower", method__name="server-only")
    return folder


def beside(run: Path) -> tuple[Run, list[Run]]:
    return Run.open(run), read_all(run.parent)[0]


def test_bars_have_intervals_over_the_test_images(pair: Path) -> None:
    run, others = beside(pair / "mix")
    lower, own = standing(run, bounds_of(run, others))
    assert own.own and own.value == run.accuracy() and not lower.own
    for bar in (lower, own):
        assert bar.low is not None and bar.high is not None and bar.low < bar.value < bar.high


def test_sentence_and_bars_come_before_every_chart(pair: Path) -> None:
    text = write_report(pair / "mix").read_text()
    assert text.index('class="verdict"') < text.index('class="standing') < text.index("<figure")
    assert "against" in text and "100 test images" in text
    assert text.index("<figure") < text.index("Compared with the bounds")


def test_a_bound_that_is_not_finished_is_marked_and_has_no_interval(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", [record(1, accuracy=0.5)], rounds=1)
    (run / "summary.json").write_text("{}")
    written_run(tmp_path / "lower", [record(1, accuracy=0.3)], method__name="server-only", rounds=1)
    found, others = beside(run)
    bars = standing(found, bounds_of(found, others))
    assert [bar.note for bar in bars] == ["not finished, round 1 of 1", ""] and bars[0].interval == ""
    assert "is not finished, round 1 of 1" in no_verdict(found, bounds_of(found, others))


def test_seeds_give_the_interval_where_a_bound_has_several(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", [record(1, accuracy=0.5)], rounds=1, seed=9)
    for seed, accuracy in enumerate((0.3, 0.4, 0.35)):
        lower = written_run(tmp_path / f"lower{seed}", [record(1, accuracy=accuracy)], seed=seed, rounds=1,
                            method__name="server-only")  # fmt: skip
        (lower / "summary.json").write_text("{}")
    (run / "summary.json").write_text("{}")
    found, others = beside(run)
    bars = standing(found, bounds_of(found, others))
    assert bars[0].value == pytest.approx(0.35) and bars[0].interval
    assert "have other seeds" in no_verdict(found, bounds_of(found, others))


def test_alone_there_are_no_bars_and_the_sentence_says_why(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", [record(1)], rounds=1)
    (run / "summary.json").write_text("{}")
    found, others = beside(run)
    assert standing(found, bounds_of(found, others)) == []
    assert "there is no server-only run in the same folder" in no_verdict(found, bounds_of(found, others))
    lower = written_run(tmp_path / "lower", [record(1)], rounds=1, method__name="server-only")
    assert no_verdict(Run.open(lower), bounds_of(Run.open(lower), [])) == ""


def test_charts_without_a_value_are_left_out(tmp_path: Path) -> None:
    empty = Run.open(written_run(tmp_path / "empty", [], rounds=5))
    assert figures_of(empty) == []
    quiet = Run.open(written_run(tmp_path / "quiet", [record(1)], rounds=5))
    assert [figure.key for figure in figures_of(quiet)] == ["accuracy", "loss", "norms", "time"]


def test_a_comparison_has_the_result_first_and_the_settings_in_a_line(tmp_path: Path) -> None:
    for mu in (0.1, 1.0):
        written_run(tmp_path / f"mu{mu}", [record(1)], partition__mu=mu, rounds=1)
    written_run(tmp_path / "fixmatch", [record(1)], rounds=1, partition__mu=1.0, method__name="fedavg",
                objective__name="fixmatch")  # fmt: skip
    (table,) = tables(read_all(tmp_path)[0])
    assert table.columns[:3] == ["method", "accuracy in %", "against server-only"]
    assert sorted(table.settings) == ["partition.mu 0.1", "partition.mu 1.0", "partition.mu 1.0"]
    assert not any("objective" in line for line in table.settings)  # FedMix has no use for that section


def test_commands_in_a_sentence_are_code() -> None:
    said = marked("worse by -3.1 than server-only (`fedfew label-next`) <b>")
    assert str(said) == "worse by −3.1 than server-only (<code>fedfew label-next</code>) &lt;b&gt;"
