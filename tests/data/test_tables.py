"""Parquet files and Hugging Face datasets: the same pixels as from files, names kept, bad rows named."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.data.image_zoo import png_claiming, saved

from fedfew.core.errors import FedfewError
from fedfew.data.included import mini_mnist
from fedfew.data.tables import huggingface, parquet

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def encoded(count: int, start: int = 0) -> tuple[list[bytes], list[int]]:
    digits = mini_mnist().train
    images = [saved(Image.fromarray(digits.samples.data[i, 0].numpy()), "PNG") for i in range(start, start + count)]
    return images, digits.labels[start : start + count].tolist()


def write_table(path: Path, images: list[Any], labels: list[Any], **notes: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": images, "label": labels})
    pq.write_table(table.replace_schema_metadata(notes or None), path)
    return path


def test_parquet_in_the_hubs_form(tmp_path: Path) -> None:
    images, labels = encoded(60)
    cells = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    names = [f"digit {d}" for d in range(10)]
    note = json.dumps({"info": {"features": {"label": {"names": names}}}})
    write_table(tmp_path / "data" / "train-00000-of-00001.parquet", cells[:45], labels[:45], huggingface=note)
    write_table(tmp_path / "data" / "test-00000-of-00001.parquet", cells[45:], labels[45:], huggingface=note)
    dataset = parquet(path=str(tmp_path / "data"), size=28, channels=1)
    original = mini_mnist().train
    assert torch.equal(dataset.train.samples.data, original.samples.data[:45])
    assert torch.equal(dataset.test.samples.data, original.samples.data[45:60])
    assert torch.equal(dataset.test.labels, original.labels[45:60])
    assert dataset.classes == tuple(names)


def test_plain_parquet_with_named_classes_and_bad_rows(tmp_path: Path) -> None:
    images, labels = encoded(40)
    images[3], images[7] = b"no image", png_claiming(30_000, 30_000)
    named: list[str | None] = [f"d{label}" for label in labels]
    named[9] = None
    path = write_table(tmp_path / "all.parquet", images, named)
    dataset = parquet(path=str(path), size=28, channels=1)
    assert len(dataset.train) + len(dataset.test) == 37
    assert [problem.path.rpartition(" ")[2] for problem in dataset.problems] == ["3", "7", "9"]
    assert dataset.classes == tuple(sorted({name for i, name in enumerate(named) if i not in (3, 7) and name}))


def test_a_saved_hugging_face_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images, labels = encoded(30)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"digit {d}" for d in range(10)])}
    )
    rows = {"image": [{"bytes": image, "path": None} for image in images], "label": labels}
    whole = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": whole.select(range(20)), "test": whole.select(range(20, 30))}).save_to_disk(
        str(tmp_path / "saved")
    )
    dataset = huggingface(path=str(tmp_path / "saved"), size=28, channels=1)
    original = mini_mnist().train
    assert torch.equal(dataset.train.samples.data, original.samples.data[:20])
    assert torch.equal(dataset.test.samples.data, original.samples.data[20:30])
    assert dataset.classes == tuple(f"digit {d}" for d in range(10))
    with pytest.raises(FedfewError, match=r"E204.*no column picture"):
        huggingface(path=str(tmp_path / "saved"), image="picture")
    with pytest.raises(FedfewError, match="E204"):
        huggingface(path=str(tmp_path))
    with pytest.raises(FedfewError, match="E206"):
        huggingface()


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    images, labels = encoded(12)
    (tmp_path / "text.parquet").write_text("no table")
    cases: list[tuple[Path, str]] = [
        (tmp_path / "text.parquet", "E204"),
        (tmp_path / "gone.parquet", "E206"),
        (write_table(tmp_path / "floats.parquet", images, [0.5] * 12), "E204"),
        (write_table(tmp_path / "negative.parquet", images, [-1] * 12), "E204"),
        (write_table(tmp_path / "huge.parquet", images, [10**9] * 12), "E204"),
        (write_table(tmp_path / "ragged.parquet", images, [[0]] * 11 + [[0, 1]]), "E204"),
        (write_table(tmp_path / "several.parquet", images, [[0, 1]] * 12), "E204"),
        (write_table(tmp_path / "no-images.parquet", ["text"] * 12, labels), "E209"),
    ]
    (tmp_path / "empty").mkdir()
    for path, code in [*cases, (tmp_path / "empty", "E206"), (Path(), "E206")]:
        with pytest.raises(FedfewError, match=code):
            parquet(path="" if path == Path() else str(path))
    with pytest.raises(FedfewError, match=r"E204.*no column picture"):
        parquet(path=str(write_table(tmp_path / "ok.parquet", images, labels)), image="picture")


def test_images_as_hugging_face_writes_them_may_lie_in_many_row_groups(tmp_path: Path) -> None:
    images, labels = encoded(40)
    table = pa.table({"image": [{"bytes": image, "path": "x"} for image in images], "label": labels})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=15)  # no multiple of the rows read at once
    dataset = parquet(path=str(tmp_path), size=28, channels=1)
    assert torch.equal(
        torch.cat([dataset.train.labels, dataset.test.labels]).sort().values, torch.tensor(labels).sort().values
    )


def test_a_parquet_bomb_is_refused(tmp_path: Path) -> None:
    table = pa.table({"image": [bytes(4_000_000)] * 20, "label": [0] * 20})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(FedfewError, match="E205"):
        parquet(path=str(tmp_path / "bomb.parquet"))


@pytest.mark.parametrize(("module", "load"), [("pyarrow.parquet", parquet), ("datasets", huggingface)])
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, load: Any) -> None:
    write_table(tmp_path / "x.parquet", [b""], [0])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FedfewError, match=r"E112.*\.\[data\]"):
        load(path=str(tmp_path))
