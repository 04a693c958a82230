"""From runs to the page: which runs count, at which round, and what the page says about them."""

import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Drawing
from paper.arms import Arm
from paper.figure import Figure
from paper.measures import Verdict
from paper.page import put, report, section
from paper.results import ArmResult, Results, level
from paper.study import Request, Study, published
from tests.docs.test_blocks import ROOT
from tests.runs.own_runs import by_hand, flat

from fedfew.core.errors import FedfewError
from fedfew.runs.run import Run


def test_requests_are_remembered_figure_by_figure(tmp_path: Path) -> None:
    study = Study(tmp_path)
    with pytest.raises(FedfewError, match="E302"):
        study.requests()
    first = Request("python -m paper fig4", "laptop", 2, {"IID": {"pooled": ["a", "b"]}})
    other = Request("python -m paper all", None, 1, partitions={"0.1": [[1, 2]]}, classes=["x", "y"])
    study.remember({"fig4": other})
    study.remember({"fig3": other})
    study.remember({"fig4": first})
    assert study.requests() == {"fig4": first, "fig3": other}
    (tmp_path / "figures.json").write_text('{"fig4": {"command": 3}}', "utf-8")
    with pytest.raises(FedfewError, match="E309"):
        study.requests()


def mean_of(arm: ArmResult) -> float:
    assert arm.accuracy is not None
    return arm.accuracy.mean


def arm_result(*runs: Run, label: str = "μ = 1", wanted: int = 0) -> ArmResult:
    return ArmResult(Arm("", label, {}), runs, wanted or len(runs))


def test_runs_that_were_cut_short_are_compared_at_the_same_round() -> None:
    long, short = by_hand([0.1, 0.2, 0.9, 0.9], finished=False), by_hand([0.3, 0.4], finished=False)
    arms = {("", "a"): arm_result(long), ("", "b"): arm_result(short)}
    even = level(arms)
    assert [even["", name].row()["rounds"] for name in "ab"] == [2, 2]
    assert [len(even["", name].runs[0].records) for name in "ab"] == [4, 2]  # curves are drawn whole
    assert mean_of(even["", "a"]) == pytest.approx(0.2)
    done = {("", "a"): arm_result(by_hand([0.1, 0.2])), ("", "b"): arm_result(by_hand([0.3] * 4))}
    assert level(done) is done  # other lengths by choice
    mixed = level({("", "a"): arm_result(by_hand([0.5, 0.6, 0.7])), ("", "b"): arm_result(short)})
    assert mean_of(mixed["", "a"]) == pytest.approx(0.6)
    assert mixed["", "a"].partial


def drawn(arms: Results, *verdicts: Verdict, scale: str | None = None) -> Figure:
    return Figure("fig6a", Request("python -m paper fig6a", scale, 2), verdicts, Drawing(), b"", arms)


def test_a_section_says_what_was_run_and_what_was_cut_short() -> None:
    done, cut = flat(0.4, seed=0), by_hand([0.1, 0.2], seed=1, finished=False, name="cut")
    arms = {
        ("", "μ = 1"): arm_result(done, wanted=2),
        ("", "μ = 10"): arm_result(cut, label="μ = 10"),
        ("", "μ = 100"): arm_result(label="μ = 100"),
    }
    text = section(
        drawn(arms, Verdict("a", "b", "–", "no runs yet", "")), [], ["results/fig6a.svg", "results/fig6a.csv"]
    )
    assert "`python -m paper fig6a`" in text
    assert "torch 2.13.0" in text
    assert "seeds 0, 1" in text
    assert "cut at round 2 of 7" in text
    assert "fewer seeds than planned for μ = 1." in text
    assert "not run yet: μ = 100." in text and "| μ = 100" not in text
    assert "1 more claim cannot be judged without the missing runs." in text
    assert "| μ = 1 | 40.0 % |  | 40.0 % | 1 | 3 | 0 |" in text
    assert "**2 of 7**" in text
    assert "55,000 images" in text  # a smaller run says what the paper had
    assert "![Figure 6a: non-IID levels μ](results/fig6a.svg)" in text
    assert text.endswith("Numbers: [fig6a.csv](results/fig6a.csv).\n")
    assert section(drawn(arms, scale="full"), [], []).startswith("## Figure 6a: non-IID levels μ, at full scale")


def test_a_page_keeps_what_others_wrote(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "understand" / "results.md"
    put(page, {"fig4": "first\n"})
    page.write_text(page.read_text("utf-8") + "\nwritten by hand\n", "utf-8")
    put(page, {"fig5": "five\n"})
    put(page, {"fig4": "second \\1\n"})
    text = page.read_text("utf-8")
    assert "first" not in text
    assert "<!-- begin fig4 -->\nsecond \\1\n<!-- end fig4 -->" in text
    assert "written by hand" in text
    assert text.index("written by hand") < text.index("five")
    put(page, {"fig4": "second \\1\n"})
    assert page.read_text("utf-8") == text


RECORDS, PAGE = ROOT / "paper" / "records", ROOT / "docs" / "understand" / "results.md"


def test_the_records_make_the_whole_page(tmp_path: Path) -> None:
    page = tmp_path / PAGE.name
    shutil.copy(PAGE, page)
    report(published(RECORDS), page)
    assert page.read_bytes() == PAGE.read_bytes(), "run `make report`"
    made, kept = ({path.name: path.read_bytes() for path in (p.parent / p.stem).iterdir()} for p in (page, PAGE))
    assert made.keys() == kept.keys(), "a file that no record makes, or one that is not published"
    assert [name for name in made if made[name] != kept[name]] == [], "run `make report`"
    assert {Path(name).suffix for name in made} == {".svg", ".csv"}


def test_the_records_are_small() -> None:
    assert sum(path.stat().st_size for path in RECORDS.iterdir()) < 2_000_000
