"""A slice of Fashion-MNIST written out as folders of PNGs: checked, trained, predicted and exported from end to end."""

from pathlib import Path

import pytest
from PIL import Image
from tests.interface.fedfew_command import fedfew

from fedfew import Run
from fedfew.core.errors import FedfewError
from fedfew.data.dataset import Dataset
from fedfew.data.fetched import fashion_mnist
from fedfew.data.sources import fetch

SITES = ("north", "south", "west")
OF_NORTH = ("T-shirt or top", "trouser", "pullover", "dress")
SHORT = [word for key in ("rounds=3", "server.epochs=8", "method.warmup=40") for word in ("--set", key)]


def obtained() -> Dataset:
    """Fashion-MNIST from the cache, or else from where it can be fetched."""
    try:
        fetch("fashion-mnist")
    except FedfewError as fault:
        pytest.skip(f"Fashion-MNIST cannot be fetched here: {fault}")
    return fashion_mnist()


def write_clothes(root: Path, server: int, clients: int, test: int) -> list[str]:
    """The first images as folders, clothes shared out among the sites by kind; gives the class names."""
    fashion = obtained()
    names = [name.replace("/", " or ") for name in fashion.classes]
    for i in range(server + clients):
        kind = int(fashion.train.labels[i])
        place = f"server/{names[kind]}" if i < server else f"clients/{SITES[kind * len(SITES) // 10]}"
        put(root / place / f"{i:05d}.png", fashion.train.samples.data[i, 0].numpy())
    for i in range(test):
        put(
            root / f"test/{names[int(fashion.test.labels[i])]}" / f"{i:05d}.png",
            fashion.test.samples.data[i, 0].numpy(),
        )
    return sorted(names)


def put(path: Path, pixels: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)  # type: ignore[arg-type]


@pytest.mark.slow
def test_clothes_in_folders_become_a_model_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, run = tmp_path / "images", tmp_path / "run"
    classes = write_clothes(images, server=150, clients=300, test=300)
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))

    assert fedfew(capsys, "init", images).status == 0
    checked = fedfew(capsys, "check", images, "--json")
    assert (checked.status, checked.json["errors"], checked.json["unreadable"]) == (0, [], [])
    assert list(checked.json["classes"]) == classes
    assert sum(checked.json["sites"].values()) == 300
    trained = fedfew(capsys, "run", images / "fedfew.toml", *SHORT, "--out", run, "--json")
    assert trained.status == 0, trained.err
    records = Run.open(run).rounds
    assert [record["cohort"] for record in records] == [[0, 1, 2]] * 3
    assert (records[-1]["accuracy"] or 0.0) > 0.5  # ten kinds of clothes

    held_out = Run.open(run).config.dataset.validation
    said = fedfew(capsys, "predict", run, images / "test", "--json").json
    right = [Path(row["image"]).parent.name == row["label"] for row in said["predictions"]]
    assert len(right) == 300
    # the accuracy of the run is that of the test images less those held out for validation
    assert abs(sum(right) - (records[-1]["accuracy"] or 0.0) * (300 - held_out)) <= held_out
    site = fedfew(capsys, "predict", run, images / "clients" / "north", "--adapt-prior", "--json").json
    assert sum(site["prior"][name] for name in OF_NORTH) > 0.5

    exported = fedfew(capsys, "export", run, "--format", "torch-export", "--json")
    assert exported.status == 0, exported.err
    assert exported.json["logit_difference"] <= 1e-5
    assert Path(exported.json["path"]).stat().st_size == exported.json["bytes"]
