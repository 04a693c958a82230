"""fedfew compare as a person meets it: the table, its files, and what is refused."""

import csv
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from tests.interface.fedfew_command import Capture, fedfew
from tests.runtime.tiny_run import tiny_run

from fedfew.runs.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    for seed in (0, 1):
        for method in ("fedmix", "server-only"):
            tiny_run(folder / f"{method}-{seed}", rounds=1, method__name=method, seed=seed, dataset__seed=seed)
    return folder


def test_table_csv_latex_and_figure(capsys: Capture, tmp_path: Path, runs: Path) -> None:
    files = [tmp_path / "new" / name for name in ("t.csv", "t.tex", "t.png", "t.md", "t.parquet")]
    said = fedfew(capsys, "compare", runs, *(f"--out={file}" for file in files), "--json")
    assert said.status == 0, said.err
    assert {row["label"]: row["accuracy"]["n"] for row in said.json["rows"]} == {"fedmix": 2, "server-only": 2}
    rows = list(csv.DictReader(files[0].read_text("utf-8").splitlines()))
    assert [float(row["mean"]) for row in rows] == [row["accuracy"]["mean"] for row in said.json["rows"]]
    assert "\\toprule" in files[1].read_text("utf-8")
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert files[3].read_text("utf-8").startswith("| method |")
    assert [row["mean"] for row in read_table(files[4]).to_pylist()] == [float(row["mean"]) for row in rows]
    shown = fedfew(capsys, "compare", runs / "fedmix-0", runs / "server-only-0", "--by", "method")
    assert shown.status == 0
    assert "Fewer than three seeds" in shown.err
    ranked = fedfew(capsys, "compare", runs, "--metric", "auroc", "--json").json
    areas = [Run.open(runs / f"fedmix-{seed}").evaluation["auroc"] for seed in (0, 1)]
    assert {row["label"]: row["accuracy"]["mean"] for row in ranked["rows"]}["fedmix"] == pytest.approx(sum(areas) / 2)
    table = fedfew(capsys, "compare", runs, "--metric", "auroc").out
    assert "AUROC in %" in table and "accuracy" not in table


def test_what_is_refused(capsys: Capture, tmp_path: Path, runs: Path) -> None:
    for words, code in (
        ((tmp_path,), "E302"),
        ((tmp_path / "nowhere",), "E302"),
        ((runs, "--by", "partition.nu"), "E104"),
        ((runs, "--measure", "best"), "E103"),
        ((runs, "--against", "semifl"), "E103"),
        ((runs, "--out", tmp_path / "f.gif"), "E103"),
    ):
        said = fedfew(capsys, "compare", *words)
        assert said.status == 2, words
        assert code in said.err
    assert not list(tmp_path.iterdir())
