"""python -m paper as a person meets it: runs once, figures and tables each time, and a page that can be made again."""

import csv
import shutil
from pathlib import Path

import pytest
from paper.__main__ import main
from tests.interface.fedfew_command import Said, fedfew
from tests.runtime.tiny_run import TINY

from fedfew.config.files import dumps


def paper(capsys: pytest.CaptureFixture[str], *words: object) -> Said:
    """Run ``python -m paper`` in this process; a traceback would end the test."""
    capsys.readouterr()
    try:
        main([str(word) for word in words])
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return Said(status, captured.out, captured.err)


@pytest.fixture
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preset") / "tiny.toml"
    path.write_text(dumps(TINY), "utf-8")
    return path


def test_runs_are_made_once_and_figures_each_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, preset: Path
) -> None:
    words = ("extra", "--preset", preset, "--seeds", 2, "--set", "rounds=2", "--out", tmp_path / "r")
    paused = paper(capsys, *words, "--until", 1, "--json")
    assert paused.json["runs"] == {"ran": 0, "skipped": 0, "paused": 8, "busy": [], "failed": {}}
    assert {(arm["rounds"], arm["finished"]) for arm in paused.json["arms"]} == {(1, False)}
    first = paper(capsys, *words, "--json")
    assert first.status == 0, first.err
    assert first.json["runs"] == {"ran": 8, "skipped": 0, "paused": 0, "busy": [], "failed": {}}
    assert {(arm["seeds"], arm["finished"]) for arm in first.json["arms"]} == {(2, True)}
    files = {Path(name).name: Path(name).read_bytes() for name in first.json["files"]}
    assert set(files) == {"extra.svg", "extra.csv"}
    rows = list(csv.DictReader(files["extra.csv"].decode().splitlines()))
    assert len(rows) == 4 * 2 * 2  # arms, seeds, rounds
    again = paper(capsys, *words, "--json")
    assert again.json["runs"] == {"ran": 0, "skipped": 8, "paused": 0, "busy": [], "failed": {}}
    assert again.json["claims"] == first.json["claims"]
    assert {name: (tmp_path / "r" / "figures" / name).read_bytes() for name in files} == files
    only = paper(capsys, *words, "--figures-only")
    assert only.status == 0
    assert "the paper says" in only.out

    page = tmp_path / "docs" / "understand" / "results.md"
    for _ in range(2):
        said = paper(capsys, "report", "--out", tmp_path / "r", "--page", page, "--json")
        assert said.json == {"page": str(page), "figures": ["extra"]}
    text = page.read_text("utf-8")
    assert text.count("<!-- begin extra -->") == text.count("<!-- begin paper -->") == 1
    assert "| Extra: aggregation when some clients take part far more often | 4 of 4 | 2 | 2 |" in text
    assert "| Figure 4: test accuracy, IID and non-IID | not run yet |  |  | – |" in text
    assert "python -m paper extra --preset" in text
    assert "--json" not in text
    assert (page.parent / "results" / "extra.svg").is_file()

    kept, other = tmp_path / "kept.jsonl.xz", tmp_path / "again" / "results.md"
    assert fedfew(capsys, "archive", tmp_path / "r", "--to", kept, "--json").json["copied"] == 8
    shutil.copy(tmp_path / "r" / "figures.json", tmp_path / "kept.json")
    preset.unlink()
    paper(capsys, "report", "--out", kept, "--page", other, "--json")
    assert other.read_text("utf-8") == text, "the records are all that the page needs"
    for path in (page.parent / "results").iterdir():
        assert (other.parent / "results" / path.name).read_bytes() == path.read_bytes()
    plans = tmp_path / "kept.json"
    plans.write_text(plans.read_text("utf-8").replace('"scale": null', '"scale": "full"'), "utf-8")
    said = paper(capsys, "report", "--out", kept, "--page", other, "--json")
    assert said.json["figures"] == ["extra-full"]
    assert other.read_text("utf-8").startswith(text.rstrip()), "the section of the other scale stays"
    assert (other.parent / "results" / "extra-full.svg").is_file()


def test_figure_3_needs_no_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, preset: Path) -> None:
    said = paper(capsys, "fig3", "--preset", preset, "--out", tmp_path, "--json")
    assert said.status == 0, said.err
    levels = [said.json["R"][mu] for mu in ("0.1", "1", "10")]
    assert levels == sorted(levels, reverse=True)
    assert len(said.json["claims"]) == 3
    rows = list(csv.DictReader((tmp_path / "figures" / "fig3.csv").read_text("utf-8").splitlines()))
    images = {mu: sum(int(row["images"]) for row in rows if row["mu"] == mu) for mu in ("0.1", "1", "10")}
    assert images == dict.fromkeys(("0.1", "1", "10"), TINY["dataset"]["unlabeled"])
    page = tmp_path / "results.md"
    assert paper(capsys, "report", "--out", tmp_path, "--page", page, "--json").json["figures"] == ["fig3"]
    assert "R = " in page.read_text("utf-8"), "the partitions are remembered: no data set is needed any more"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("fig7",), "E105"),
        (("fig4", "--scale", "huge"), "E103"),
        (("fig4", "--set", "seed=1"), "E113"),
        (("fig4", "--set", "method.alhpa=1"), "E104"),
        (("fig4", "--preset", "paper-tund"), "E101"),
        (("fig4", "--jobs", "4096"), "E103"),
        (("fig4", "--arm", "FedMx"), "E105"),
        (("report",), "E302"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], code: str
) -> None:
    said = paper(capsys, *words, "--out", tmp_path / "r", "--page", tmp_path / "page.md")
    assert said.status == 2
    assert code in said.err
    assert not list(tmp_path.iterdir())
