"""The demo's table, its comparison and its report give one answer: accuracy after the last round, paired."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.interface.fedfew_command import Capture, fedfew

from fedfew.interface import console
from fedfew.interface.commands import demo
from fedfew.interface.commands.demo import COMPARISONS, WARM

SHORT = {"rounds": 2, "server.epochs": 1, "client.epochs": 1, "fleet.kind": "inline", "dataset.validation": 0}
FEW_PHOTOS = {"dataset.unlabeled": 40, "dataset.test": 20, "labels": 20, "clients": 4, "model.size": 32}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's methods with two rounds and few images."""
    for data, few in (("digits", {"participation": 0.1}), ("photos", FEW_PHOTOS)):
        preset, arms = COMPARISONS[data]
        shorter = {
            name: replace(arm, settings=arm.settings | dict.fromkeys(arm.settings.keys() & WARM, 1) | SHORT | few)
            for name, arm in arms.items()
        }
        monkeypatch.setitem(COMPARISONS, data, (preset, shorter))


@pytest.mark.parametrize("data", list(COMPARISONS))
def test_console_comparison_and_report_agree_and_every_arm_has_its_pair(
    data: str, tmp_path: Path, capsys: Capture
) -> None:
    said = fedfew(capsys, "demo", "--data", data, "--out", str(tmp_path / "demo"), "--json")
    assert said.json["data"] == data
    compared = fedfew(capsys, "compare", str(tmp_path / "demo"), "--by", "method", "--json").json
    rows = {row["key"]["method.name"]: row for row in compared["rows"]}
    report = Path(said.json["report"]).read_text("utf-8")
    base = rows["server-only"]["accuracy"]["mean"]
    for name, result in said.json["methods"].items():
        assert result["accuracy"] == pytest.approx(rows[name]["accuracy"]["mean"], abs=1e-4)
        assert f"{100 * result['accuracy']:.1f} %" in report
        if name != "server-only":
            assert rows[name]["difference"]["mean"] == pytest.approx(rows[name]["accuracy"]["mean"] - base)
            assert result["difference"].startswith(f"{100 * rows[name]['difference']['mean']:+.1f}")


def test_the_paper_s_methods_are_shown_in_80_columns_with_a_reason_each(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "width", 80)
    said = fedfew(capsys, "demo", "--data", "photos", "--seeds", "2", "--out", str(tmp_path / "demo"))
    lines = said.out.splitlines()
    assert lines[0] == "20 labels, 4 clients with unlabeled photographs, 2 rounds, 2 seeds"
    for arm in COMPARISONS["photos"][1].values():
        (row,) = [line for line in lines if line.startswith(f"{arm.title}  ")]
        assert len(row) <= 80 and " %" in row and ("±" in row)  # in one line, not folded
        assert any(line.startswith(f"{arm.title}: {arm.why}.") for line in lines)
    assert tuple(COMPARISONS["photos"][1])[1:3] == ("fedmix", "fedmatch")


def test_without_the_extra_it_shows_digits_and_says_what_would_show_photographs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "installed", lambda extra: False)
    said = fedfew(capsys, "demo", "--out", str(tmp_path / "demo"))
    assert "unlabeled digits" in said.out
    assert ".[pretrained]" in said.out
