"""Texts through a sentence encoder: a small random one in the format of transformers, so that nothing is downloaded."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel

from fedfew.api import run as run_config
from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.core import extras
from fedfew.core.errors import FedfewError
from fedfew.data.rows.datasets import text
from fedfew.data.samples.texts import Texts
from fedfew.inference.predict import predict_files
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.models.backbones.sentence import sentence
from fedfew.runs.model_file import predict

WORDS = ("heart", "pulse", "bone", "wrist", "the", "pain")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertModel(BertConfig(vocab_size=8, **shape)).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1} | {word: 2 + i for i, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def notes(path: Path) -> Path:
    """Twelve labeled notes, eight to test on, and two sites that see one class each."""
    rows = [("heart pulse the", "chest", "", "server"), ("bone wrist the", "arm", "", "server")] * 6
    rows += [("pulse heart pain", "chest", "", "test"), ("wrist bone pain", "arm", "", "test")] * 4
    rows += [("heart pulse", "", "north", "client"), ("bone wrist", "", "south", "client")] * 10
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "site", "split"), *rows])
    return path


def test_bytes_return_as_the_same_words_and_long_texts_are_cut() -> None:
    texts = Texts.of(["naïve", "Größe", "日本"], 5)
    assert texts.words() == ["naïv", "Grö", "日"]  # ï and ö are two bytes, ß would be the sixth


def test_a_vector_is_the_mean_over_the_texts_own_tokens(encoder: str) -> None:
    model = sentence(2, source=encoder).eval()
    short, long = Texts.of(["heart", "heart pulse the pain"], 40), Texts.of(["heart"], 40)
    keys = torch.zeros(2, 16, dtype=torch.uint8)
    with torch.no_grad():
        both, alone = model.features(short, keys)[:1], model.features(long, keys[:1])
        state = model.backbone(input_ids=torch.tensor([[2]])).last_hidden_state[0, 0]
    torch.testing.assert_close(both, alone, atol=1e-5, rtol=1e-5)  # padding does not count
    torch.testing.assert_close(alone[0, 0], LENGTH * state / state.norm(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["fedmoments", "server-only"])
def test_a_table_of_texts_becomes_a_model_that_predicts_tables(tmp_path: Path, encoder: str, method: str) -> None:
    path = notes(tmp_path / "notes.csv")
    table: dict[str, Any] = {
        "rounds": 2,
        "dataset": {"name": "text", "path": str(path), "validation": 0},
        "model": {"name": "sentence", "source": encoder},
        "method": {"name": method},
        "server": {"lr": 0.5, "epochs": 20, "batch": 4},
        "fleet": {"kind": "inline"},
    }
    run = run_config(table, out=tmp_path / "run")
    told = predict_files(run, [path])
    assert told.probabilities.shape == (40, 2) and told.names[0].endswith("notes.csv line 2")
    words = [row["text"] for row in csv.DictReader(path.open())]
    torch.testing.assert_close(predict(run, words), told.probabilities)
    truth = [row["label"] for row in csv.DictReader(path.open())][:20]
    assert [row["label"] for row in told.rows(0)][:20] == truth


def test_features_are_computed_once(tmp_path: Path, encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = {"name": "text", "path": str(notes(tmp_path / "notes.csv")), "validation": 0}
    config = load({"dataset": dataset, "model": {"name": "sentence", "source": encoder}})
    first = assemble(config).federation.samples.data
    monkeypatch.setattr("fedfew.models.backbones.sentence.Sentence._embed", None)
    assert torch.equal(assemble(config).federation.samples.data, first)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("note,label\na,x\nb,y\n", "E204.*no column text.*note, label"),
        ("text,label\na,x\n ,y\n", "E213.*line 3, column text.*empty"),
        ("text,label\n", "E2"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(FedfewError, match=message):
        text(path=str(tmp_path / "t.csv"))


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.PACKAGES, "text", ("no_such_package",))
    with pytest.raises(FedfewError, match=r"E112.*no_such_package.*\[text\]"):
        sentence(2)


def test_a_sentence_encoder_knows_classes_by_the_vectors_of_their_names(encoder: str) -> None:
    model = sentence(3, source=encoder)
    names = model.named(("heart pain", "bone", "the wrist"))
    assert names is not None and names.shape == (3, 16)
    pain, bone = (model.features(Texts.of([text], 16), torch.zeros(1, 16))[0, 0] for text in ("heart pain", "bone"))
    assert torch.allclose(names[1] - names[0], bone - pain, atol=1e-4)
    assert model.named(("0", "1")) is None
