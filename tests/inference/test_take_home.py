"""What goes with an export: the model card, the Hugging Face layout, and the docs' example without fedfew."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.docs.blocks import blocks_of
from tests.inference.digits_run import digits_run
from tests.interface.fedfew_command import fedfew

from fedfew import FedfewError, Run, load_model
from fedfew.core.storage import file_digest
from fedfew.data.samples import Images

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run by itself, so that nothing lies beside it."""
    place = tmp_path / "runs" / "fedmix"
    shutil.copytree(digits_run()[1], place)
    return place


def test_the_card_says_what_the_files_say(run: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "export", run, "--json")
    assert said.status == 0, said.err
    card = Path(said.json["card"])
    assert card == run / "export" / "MODEL_CARD.md"
    text, trained = card.read_text(), Run.open(run)
    assert f"{100 * trained.accuracies['last']:.1f} %" in text  # type: ignore[operator]
    assert "without the clients' images was not measured" in text
    for words in ("Labels at the server: 150", "Clients: 4", "fedmix + fedfreq", "cnn", "Limits"):
        assert words in text, words
    assert f"| digit 7 | {trained.classes['server'][7]} |" in text
    assert file_digest(run / "export" / "model.safetensors") in text
    assert trained.summary["model_sha256"] in text
    assert "uint8 N×1×28×28" in text


@pytest.mark.parametrize("recipe", ["its own", "another"])
def test_server_only_with_the_same_recipe_stands_beside(recipe: str, run: Path, capsys: Capture) -> None:
    other = run.parent / "labels-alone"
    shutil.copytree(run, other)
    settings = (other / "run.toml").read_text().replace('name = "fedmix"', 'name = "server-only"')
    if recipe == "another":
        settings = settings.replace('schedule = "constant"', 'schedule = "cosine"')
        assert "cosine" in settings
    (other / "run.toml").write_text(settings)
    summary = json.loads((other / "summary.json").read_text())
    summary["accuracy"] = dict.fromkeys(summary["accuracy"], 0.125)
    (other / "summary.json").write_text(json.dumps(summary))
    assert fedfew(capsys, "export", run).status == 0
    gain = 100 * (Run.open(run).accuracy() or 0) - 12.5
    card = (run / "export" / "MODEL_CARD.md").read_text()
    assert (f"reach 12.5 % ({gain:+.1f} points)" in card) == (recipe == "its own")
    assert ("was not measured" in card) == (recipe == "another")


def test_somebody_elses_card_is_kept(run: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "MODEL_CARD.md").write_text("mine")
    said = fedfew(capsys, "export", run, "--out", tmp_path / "digits.safetensors", "--json")
    assert (tmp_path / "MODEL_CARD.md").read_text() == "mine"
    assert Path(said.json["card"]) == tmp_path / "digits.MODEL_CARD.md"
    again = fedfew(capsys, "export", run, "--json")
    assert fedfew(capsys, "export", run, "--json").json["card"] == again.json["card"]  # its own is replaced


def test_hugging_face_layout(run: Path, tmp_path: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "export", run, "--format", "huggingface", "--out", tmp_path / "hub", "--json")
    assert said.status == 0, said.err
    hub = tmp_path / "hub"
    assert {file.name for file in hub.iterdir()} == {
        "model.safetensors", "config.json", "preprocessor_config.json", "README.md"
    }  # fmt: skip
    config = json.loads((hub / "config.json").read_text())
    assert config["id2label"]["7"] == "digit 7" and config["label2id"]["digit 7"] == 7
    readme = (hub / "README.md").read_text()
    assert readme.startswith("---\nlibrary_name: fedfew\n") and "## Limits" in readme
    network, about = load_model(hub)
    images = torch.randint(0, 256, (3, *about["shape"]), dtype=torch.uint8)
    assert torch.equal(network.probabilities(Images(images)), Run.open(run).network().probabilities(Images(images)))
    with pytest.raises(FedfewError, match="E302"):
        load_model(tmp_path / "runs")


def test_transformers_reads_the_preprocessor_settings(run: Path, tmp_path: Path, capsys: Capture) -> None:
    transformers: Any = pytest.importorskip("transformers")
    assert fedfew(capsys, "export", run, "--format", "huggingface", "--out", tmp_path / "hub").status == 0
    processor = transformers.CLIPImageProcessor.from_pretrained(tmp_path / "hub")
    network, about = load_model(tmp_path / "hub")
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 1), dtype=np.uint8)
    given = processor(pixels, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    expected = Images.described(torch.from_numpy(pixels).permute(2, 0, 1)[None], about).inputs(network.device)
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
    assert about["classes"][0] == "digit 0"


def test_the_example_needs_no_fedfew(
    run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The docs' block, word for word, says what ``fedfew predict`` says about the same files."""
    pytest.importorskip("onnxruntime")
    [example] = [b.code for b in blocks_of(PAGE, "own-data.md") if "InferenceSession" in b.code]
    assert "fedfew." not in example and "import fedfew" not in example
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 16
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").symlink_to(digits_run()[0])
    assert fedfew(capsys, "export", run, "--format", "onnx", "--out", "model.onnx").status == 0
    capsys.readouterr()
    exec(compile(example, "example", "exec"), {})
    rows = [line.rsplit(" ", 3) for line in capsys.readouterr().out.splitlines()]
    files = [row[0] for row in rows]
    predicted = fedfew(capsys, "predict", run, *files, "--json").json["predictions"]
    for row, expected in zip(rows, predicted, strict=True):
        assert " ".join(row[1:3]) == expected["label"]
        assert float(row[3]) == pytest.approx(expected["probability"], abs=1e-5)
