"""From a table or a folder of texts to a verdict, and all that its model is used for, on the command line."""

import csv
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pandas
import pytest
from tests.interface.fedfew_command import Capture, Said, fedfew
from tests.models.test_sentence import encoder, notes  # noqa: F401 - a fixture

from fedfew import from_arrays, load_classifier
from fedfew.config.parts import assemble
from fedfew.config.schema import load

FRAMES = [pandas, *([import_module("polars")] if find_spec("polars") else [])]
"""Libraries of data frames; no extra installs polars."""


def patients(path: Path, seed: int = 0, blank: bool = True) -> Path:
    """Three hospitals with mixes of their own: numbers, a category, gaps, a number of the patient; few labels."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient_id", "age", "pulse", "ward", "diagnosis", "hospital", "split"])
        for number in range(420):
            site = number % 3
            ill = rng.random() < (0.9, 0.5, 0.1)[site]
            part = "test" if number % 4 == 3 else "server" if number < 60 else "client"
            label = "" if blank and part == "client" else ("ill" if ill else "well")
            pulse = "" if number % 50 == 49 else f"{rng.normal(90 if ill else 60, 12):.2f}"
            ward = "ab"[int(rng.random() < (0.8 if ill else 0.2))]
            row = [f"p{number}", f"{rng.normal(70 if ill else 50, 8):.1f}", pulse, ward, label]
            writer.writerow([*row, ("north", "south", "west")[site], part])
    return path


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Said]:
    """A folder, and what the command said there once it has run."""
    return {tmp_path_factory.mktemp("rows"): Said(-1, "", "")}


@pytest.fixture
def tried(trial: dict[Path, Said], capsys: Capture) -> Path:
    [(folder, said)] = trial.items()
    if said.status == -1:
        words = ("--set", "rounds=3", "--set", "fleet.kind=inline", "--out", folder / "runs")
        trial[folder] = fedfew(capsys, "try", patients(folder / "patients.csv"), *words)
    return folder


def test_a_table_is_tried_without_code(tried: Path, trial: dict[Path, Said]) -> None:
    said = trial[tried]
    assert said.status == 0 and "test rows" in said.out and "sites' rows" in said.out
    for reason in ("a table with", "patient_id is left out", "missing values: ", "linear with fedmoments"):
        assert reason in said.err
    config = (tried / "runs" / "fedfew.toml").read_text()
    assert 'columns = "age,pulse,ward"' in config and 'label = "diagnosis"' in config and 'site = "hospital"' in config


def test_the_model_of_a_table_predicts_evaluates_and_asks_for_labels(tried: Path, capsys: Capture) -> None:
    run, table = tried / "runs" / "fedmoments", tried / "patients.csv"
    rows = list(csv.DictReader(fedfew(capsys, "predict", run, table, "--csv").out.splitlines()))
    assert len(rows) == 420 and rows[0]["row"].endswith("patients.csv line 2")
    known = {i: row["diagnosis"] for i, row in enumerate(csv.DictReader(table.open())) if row["diagnosis"]}
    right = np.mean([rows[i]["label"] == label for i, label in known.items()])
    measured = json.loads(fedfew(capsys, "evaluate", run, table, "--json").out)
    assert measured["images"] == len(known) and measured["accuracy"] == pytest.approx(right) and right > 0.9
    chosen = json.loads(fedfew(capsys, "label-next", run, table, "-n", "2", "--json").out)
    assert chosen["considered"] == 420 - len(known), "rows that have a label are not asked for"
    assert all(int(row["row"].rpartition(" ")[2]) - 2 not in known for row in chosen["chosen"])
    frame = pandas.read_csv(table)
    frame.dropna(subset="diagnosis").to_csv(tried / "known.csv", index=False)
    assert "every row has a diagnosis" in fedfew(capsys, "label-next", run, tried / "known.csv").err

    for library in FRAMES:
        assert load_classifier(run).predict(library.read_csv(table)).tolist() == [row["label"] for row in rows]
    assert load_classifier(run).score(frame.loc[list(known)], list(known.values())) == pytest.approx(right)
    assert load_classifier(run).feature_names_in_.tolist() == ["age", "pulse", "ward"]


@pytest.mark.slow
def test_exports_of_a_table_take_its_raw_numbers(tried: Path, capsys: Capture) -> None:
    run, out = tried / "runs" / "fedmoments", tried / "model.onnx"
    assert fedfew(capsys, "export", run, "--format", "onnx", "--out", out).status == 0
    session = onnxruntime.InferenceSession(str(out))
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedfew"])
    assert about["input"].endswith("in this order: age, pulse, ward=a, ward=b")
    raw = np.array([[70.5, 88, 0, 1], [44, np.nan, 1, 0]], np.float32)
    [shares] = session.run(["probabilities"], {"numbers": raw})
    np.testing.assert_allclose(shares, load_classifier(run).predict_proba(raw), atol=1e-5)


def test_a_table_exported_for_hugging_face_is_a_classifier(tried: Path, capsys: Capture) -> None:
    run = tried / "runs" / "fedmoments"
    assert fedfew(capsys, "export", run, "--format", "huggingface", "--out", tried / "hub").status == 0
    assert "tabular-classification" in (tried / "hub" / "README.md").read_text()
    assert load_classifier(tried / "hub").classes_.tolist() == ["ill", "well"]


def test_check_and_init_speak_of_rows_and_say_which_column_is_missing(tmp_path: Path, capsys: Capture) -> None:
    table = patients(tmp_path / "all.csv", blank=False)
    said = fedfew(capsys, "check", table)
    assert said.status == 0 and "rows" in said.out and "images" not in said.out
    assert fedfew(capsys, "init", table, "--label", "ward", "--site", "hospital").status == 0
    written = (tmp_path / "all.toml").read_text()
    assert 'path = "all.csv"' in written and 'label = "ward"' in written
    assert fedfew(capsys, "check", tmp_path / "all.toml").status == 0
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    assert "Name it with --label COLUMN. It has a, b" in fedfew(capsys, "try", tmp_path / "odd.csv").err
    (tmp_path / "odd.csv").write_text("a,label\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(20)) + "inf,\n")
    said = fedfew(capsys, "try", tmp_path / "odd.csv", "--out", tmp_path / "out")
    assert said.status == 2 and "line 22, column a: is infinite" in said.err and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_files_of_text_are_tried_evaluated_and_exported(
    tmp_path: Path,
    capsys: Capture,
    encoder: str,  # noqa: F811
) -> None:
    rows = list(csv.DictReader(notes(tmp_path / "notes.csv").open()))
    for number, row in enumerate(rows):
        group = f"clients/{row['site']}" if row["split"] == "client" else f"{row['split']}/{row['label']}"
        path = tmp_path / "notes" / group / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(row["text"])
    small = ("--set", f"model.source={encoder}", "--set", "rounds=2", "--set", "fleet.kind=inline")
    said = fedfew(capsys, "try", tmp_path / "notes", *small, "--out", tmp_path / "runs")
    assert said.status == 0 and "test texts" in said.out and "files of text" in said.err
    run = tmp_path / "runs" / "fedmoments"
    measured = json.loads(fedfew(capsys, "evaluate", run, tmp_path / "notes" / "test", "--json").out)
    assert measured["images"] == 8 and measured["accuracy"] == 1
    chosen = json.loads(fedfew(capsys, "label-next", run, tmp_path / "notes" / "clients", "-n", "1", "--json").out)
    assert chosen["considered"] == 20 and chosen["chosen"][0]["text"].endswith(".txt")
    assert fedfew(capsys, "export", run, "--format", "onnx", "--out", tmp_path / "out" / "m.onnx").status == 0
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode_batch(["heart pulse", "the bone"])
    inputs = {"tokens": [one.ids for one in tokens], "mask": [one.attention_mask for one in tokens]}
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "m.onnx"))
    [shares] = session.run(["probabilities"], {name: np.array(value) for name, value in inputs.items()})
    np.testing.assert_allclose(shares, load_classifier(run).predict_proba(["heart pulse", "the bone"]), atol=1e-4)


def test_frames_with_mixed_columns_and_lists_of_texts_make_a_run(tmp_path: Path, encoder: str) -> None:  # noqa: F811
    columns = {"dose": [1.0, 2, 3, 4], "ward": ["a", "b", "a", "b"]}
    for number, library in enumerate(FRAMES):
        frame = library.DataFrame(columns)
        config = from_arrays((frame, ["x", "y", "x", "y"]), {"n": frame}, path=tmp_path / str(number))
        assert assemble(load(config)).federation.shape == (3,)
    texts = from_arrays((["the heart", "the bone"], ["x", "y"]), [["a pulse", "a wrist"]], path=tmp_path / "t")
    parts = assemble(load(texts, {"model.source": encoder}))
    assert parts.federation.sites == ("client 0",) and len(parts.federation.samples) == 2


def test_vectors_in_files_of_their_own_are_recognised(tmp_path: Path, capsys: Capture) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    x = (rng.normal(size=(60, 3, 5)) + 4 * labels[:, None, None]).astype(np.float16)
    (tmp_path / "v" / "clients").mkdir(parents=True)
    np.save(tmp_path / "v" / "server.npy", x[:20])
    np.save(tmp_path / "v" / "server_labels.npy", labels[:20])
    np.savez(tmp_path / "v" / "clients" / "north.npz", x=x[20:])
    said = fedfew(capsys, "try", tmp_path / "v", "--set", "rounds=2", "--set", "fleet.kind=inline",
                  "--set", "method.name=fedmix", "--out", tmp_path / "out")  # fmt: skip
    assert said.status == 0 and "vectors x of 5 numbers" in said.err
    assert "no test rows" in said.out and "by cross-validation with 5 folds" in said.out
