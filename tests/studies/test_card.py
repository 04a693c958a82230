"""A card: a table of results from which a row is run again, to the same bits."""

import json
from pathlib import Path

import pytest
from tests.interface.fedfew_command import Capture, fedfew
from tests.runtime.tiny_run import tiny_run

from fedfew.runs.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carded")
    for seed in (0, 1):
        for method in ("fedmix", "server-only"):
            tiny_run(folder / f"{method}-{seed}", rounds=1, method__name=method, seed=seed, dataset__seed=seed)
    return folder


def test_a_row_is_run_again_to_the_same_bits(capsys: Capture, tmp_path: Path, runs: Path) -> None:
    card = tmp_path / "new" / "card.md"
    said = fedfew(capsys, "card", runs, "--out", card, "--json")
    assert said.status == 0, said.err
    row = [row["label"] for row in said.json["rows"]].index("fedmix") + 1
    text = card.read_text("utf-8")
    assert f"| {row} | fedmix\\* |" in text and "published 0.8" in text
    assert Run.open(runs / "fedmix-1").summary["model_sha256"][:16] in text
    again = fedfew(capsys, "rerun", card, "--row", str(row), "--out", tmp_path / "again", "--json")
    assert again.status == 0, again.err
    assert [(run["same"], run["accuracy"] == run["card"]) for run in again.json["runs"]] == [(True, True)] * 2
    assert [Run.open(run["run"]).seeds for run in again.json["runs"]] == [(0, 0), (1, 1)]
    # a change is seen, and told with both numbers
    other = fedfew(capsys, "rerun", card, "--row", str(row), "--set", "server.lr=0.2", "--out", tmp_path / "other")
    assert other.status == 0 and "other bits" in other.out and "the card says" in other.out


def test_a_card_runs_no_code_and_nothing_else_is_a_card(capsys: Capture, tmp_path: Path, runs: Path) -> None:
    card = tmp_path / "card.md"
    fedfew(capsys, "card", runs / "fedmix-0", "--out", card)
    head, _, rest = card.read_text("utf-8").partition("```json\n")
    content = json.loads(rest.partition("\n```")[0])
    content["shared"]["model.name"] = "subprocess:run"
    (tmp_path / "bad.md").write_text(f"{head}```json\n{json.dumps(content)}\n```\n", "utf-8")
    (tmp_path / "text.md").write_text("no card", "utf-8")
    for words, code in ((("bad.md", "1"), "E125"), (("text.md", "1"), "E309"), (("card.md", "2"), "E103")):
        said = fedfew(capsys, "rerun", tmp_path / words[0], "--row", words[1], "--out", tmp_path / "runs")
        assert said.status == 2 and code in said.err, said.err
    assert not (tmp_path / "runs").exists()
