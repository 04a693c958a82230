"""fedfew sweep as a person meets it."""

from pathlib import Path

import pytest
from tests.interface.fedfew_command import fedfew
from tests.runtime.tiny_run import TINY

from fedfew.config import toml


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(toml.dumps(TINY), "utf-8")
    return path


def test_a_grid_in_one_folder_kept_when_repeated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: Path
) -> None:
    words = ("sweep", config, "--set", "rounds=1", "--grid", "partition.mu=0.1,1", "--grid", "seed=0,1")
    said = fedfew(capsys, *words, "--out", tmp_path / "s", "--json")
    assert said.status == 0, said.err
    assert said.json["runs"]["ran"] == 4
    assert sorted(cell["cell"] for cell in said.json["cells"]) == [
        "mu0.1-seed0", "mu0.1-seed1", "mu1-seed0", "mu1-seed1",
    ]  # fmt: skip
    best = max(cell["best_validation"] for cell in said.json["cells"])
    assert said.json["best"]["best_validation"] == best
    again = fedfew(capsys, *words, "--out", tmp_path / "s")
    assert again.status == 0
    assert "best validation" in again.out
    assert len(list((tmp_path / "s").iterdir())) == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "E103"),
        (("--grid", "seed"), "E102"),
        (("--grid", "partition.nu=1,2"), "E104"),
        (("--range", "server.lr=0.1:1"), "E113"),
        (("--optuna", "2"), "E103"),
        (("--optuna", "2", "--jobs", "2", "--grid", "seed=0,1"), "E1"),
        (("--grid", "seed=0,1", "--jobs", "4096"), "E103"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, config: Path, words: tuple[str, ...], code: str
) -> None:
    said = fedfew(capsys, "sweep", config, *words, "--out", tmp_path / "s")
    assert said.status == 2
    assert code in said.err
    assert not (tmp_path / "s").exists()
