"""The demo's table, its comparison and its report give one answer: accuracy after the last round, paired."""

from pathlib import Path

import pytest
from tests.interface.fedfew_command import fedfew

from fedfew.interface.commands import demo

SHORT = {"rounds": 2, "server.epochs": 1, "client.epochs": 1, "fleet.kind": "inline", "dataset.validation": 0}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's methods with two rounds."""
    chosen = {name: own | SHORT | {"participation": 0.1} for name, own in demo.METHODS.items()}
    for own in chosen.values():
        own.update({"method.warmup": 1} if "method.warmup" in own else {})
    monkeypatch.setattr(demo, "METHODS", chosen)


def test_console_comparison_and_report_agree_and_every_arm_has_its_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fedfew(capsys, "demo", "--out", str(tmp_path / "demo"), "--json")
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
