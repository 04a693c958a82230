"""fedfew sweep, learning-curve, compare, card and rerun: grids, seeds, tables, and rows that are run again."""

import csv
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from tests.data.digit_folders import write_digits
from tests.interface.fedfew_command import Capture, fedfew
from tests.runtime.tiny_run import TINY, tiny_run

from fedfew.config.files import dumps
from fedfew.interface.report.standing import standing
from fedfew.runs.folder import find_runs
from fedfew.runs.run import Run
from fedfew.studies.bounds import bounds_of
from fedfew.studies.learning_curve import halves


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(dumps(TINY), "utf-8")
    return path


def test_a_grid_in_one_folder_kept_when_repeated(capsys: Capture, tmp_path: Path, config: Path) -> None:
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
    assert "by validation accuracy, best first" in again.out
    assert len(list((tmp_path / "s").iterdir())) == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sweep",), "E103"),
        (("sweep", "--grid", "seed"), "E102"),
        (("sweep", "--grid", "partition.nu=1,2"), "E104"),
        (("sweep", "--range", "server.lr=0.1:1"), "E113"),
        (("sweep", "--optuna", "2"), "E103"),
        (("sweep", "--optuna", "2", "--jobs", "2", "--grid", "seed=0,1"), "E1"),
        (("sweep", "--grid", "seed=0,1", "--jobs", "4096"), "E103"),
        (("learning-curve", "--labels", "ten"), "E103"),
        (("learning-curve", "--set", "method.name=server-only"), "E113"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    capsys: Capture, tmp_path: Path, config: Path, words: tuple[str, ...], code: str
) -> None:
    said = fedfew(capsys, words[0], config, *words[1:], "--out", tmp_path / "s")
    assert said.status == 2
    assert code in said.err
    assert not (tmp_path / "s").exists()


CURVE = ("--set", "method.name=fedfew", "--set", "method.warmup=2", "--set", "rounds=1", "--seeds", "1")


def test_a_learning_curve_with_and_without_the_sites(capsys: Capture, tmp_path: Path, config: Path) -> None:
    words = ("learning-curve", config, "--labels", "20,10", *CURVE, "--out", tmp_path / "c")
    said = fedfew(capsys, *words, "--json")
    assert said.status == 0, said.err
    steps = said.json["steps"]
    assert [step["labels"] for step in steps] == [10, 20]
    for step in steps:
        gap = step["accuracy"]["mean"] - step["server_only"]["mean"]
        assert step["difference"]["mean"] == pytest.approx(gap)
        assert step["accuracy"]["low"] <= step["accuracy"]["mean"] <= step["accuracy"]["high"]
    made = [Run.open(path) for path in find_runs(tmp_path / "c")]
    assert sorted((run.method, run.document["labels"]) for run in made) == [
        ("fedfew", 10), ("fedfew", 20), ("server-only", 10), ("server-only", 20),
    ]  # fmt: skip
    assert (tmp_path / "c" / "learning-curve.png").is_file()
    assert "with the sites' data" in (tmp_path / "c" / "learning-curve.csv").read_text("utf-8")
    again = fedfew(capsys, *words)
    assert "labels alone" in again.out and len(find_runs(tmp_path / "c")) == 4, "finished runs are kept"
    assert said.json["sentence"] in again.out


def test_a_learning_curve_of_own_images_without_a_test_folder(capsys: Capture, tmp_path: Path) -> None:
    folder = write_digits(tmp_path / "own", server=40, clients=20, test=0, sites=2)
    quick = ("--set", "server.epochs=1", "--set", "client.epochs=1", "--set", "fleet.kind=inline", *CURVE)
    said = fedfew(capsys, "learning-curve", folder, "--labels", "20", *quick, "--out", tmp_path / "c", "--json")
    assert said.status == 0, said.err
    assert said.json["folds"] > 1 and len(find_runs(tmp_path / "c")) == 2 * said.json["folds"]


def test_labels_are_halved_as_long_as_every_class_may_have_one() -> None:
    assert halves(80, 10) == [10, 20, 40, 80] and halves(30, 4) == [7, 15, 30] and halves(3, 4) == [3]


PHOTOS = {"rounds": 1, "server.epochs": 1, "fleet.kind": "inline", "dataset.unlabeled": 40, "dataset.test": 20}
PHOTOS |= {"labels": 20, "clients": 4, "model.size": 32, "method.name": "semifl"}


def test_labels_and_names_alone_stand_beside_every_method_of_a_backbone_that_knows_them(
    capsys: Capture, tmp_path: Path
) -> None:
    words = [word for key, value in PHOTOS.items() if key != "method.name" for word in ("--set", f"{key}={value}")]
    grid = ("--grid", "method.name=server-only,semifl", "--grid", "client.lr=0.1,0.2", "--seeds", "1")
    said = fedfew(capsys, "sweep", "demo-photos", *words, *grid, "--out", tmp_path / "s", "--json")
    assert said.status == 0, said.err
    named = [cell["run"] for cell in said.json["cells"] if cell["cell"].startswith("labels-names")]
    assert said.json["runs"]["ran"] == 5 and len(named) == 1, "client.lr does not matter to it"
    table = fedfew(capsys, "compare", tmp_path / "s", "--by", "method", "--json").json
    row = next(row for row in table["rows"] if row["key"]["method.name"] == "labels-names")
    assert row["label"] == "labels + names" and row["difference"] is not None and not row["unpublished"]
    others = [cell["run"] for cell in said.json["cells"] if cell["run"] not in named]
    assert "knows classes by name" in " ".join(fedfew(capsys, "compare", *others, "--json").json["notes"])
    semifl = Run.open(next(path for path in others if "semifl" in path))
    bounds = {bound.name: bound for bound in bounds_of(semifl, list(map(Run.open, named)))}
    assert bounds["labels-names"].same_seed and not bounds["labels-names"].mismatch
    assert any(bar.name.startswith("labels-names") for bar in standing(semifl, list(bounds.values())))


def test_a_run_on_a_backbone_that_knows_the_names_says_what_they_give(capsys: Capture, tmp_path: Path) -> None:
    words = [word for key, value in PHOTOS.items() for word in ("--set", f"{key}={value}")]
    said = fedfew(capsys, "run", "demo-photos", *words, "--out", tmp_path / "run", "--json")
    assert said.status == 0 and Run.open(said.json["labels_names"]).method == "labels-names"
    mnist = ("--set", "dataset.name=mini-mnist", "--set", "dataset.unlabeled=40")
    said = fedfew(capsys, "run", "demo-photos", *words, *mnist, "--out", tmp_path / "digits", "--json")
    assert said.status == 0 and "labels_names" not in said.json, "digits are no names"


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
