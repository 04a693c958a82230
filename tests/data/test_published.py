"""Published datasets from files in their original form: pixels, classes and users as written, other files refused."""

import hashlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from tests.data.archives_for_tests import pack, small, write

from fedfew.config.schema import load as load_config
from fedfew.core.errors import FedfewError
from fedfew.data import fetched, npz
from fedfew.data.cache import cache_folder
from fedfew.data.federation import Split, federate
from fedfew.data.fetched import RECIPES, Arrays, decode
from fedfew.data.images.labeled import image_folder
from fedfew.data.leaf import femnist
from fedfew.data.partitions import make_partition
from fedfew.data.sources import fetch

pytestmark = pytest.mark.usefixtures("own_cache")
Files = dict[str, bytes]


def cifar100(arrays: Arrays) -> Files:
    """The coarse class, the fine class, then the planes of an image."""
    return {
        f"cifar-100-binary/{part}.bin": np.hstack(
            [
                np.full((len(arrays[f"{part}_labels"]), 1), 3, np.uint8),
                arrays[f"{part}_labels"][:, None].astype(np.uint8),
                arrays[f"{part}_images"].reshape(len(arrays[f"{part}_labels"]), -1),
            ]
        ).tobytes()
        for part in ("train", "test")
    }


def svhn(arrays: Arrays) -> Files:
    files = {}
    for part in ("train", "test"):
        labels, buffer = arrays[f"{part}_labels"], io.BytesIO()
        images = arrays[f"{part}_images"].transpose(2, 3, 1, 0)
        scipy.io.savemat(buffer, {"X": images, "y": np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)})
        files[f"{part}_32x32.mat"] = buffer.getvalue()
    return files


def stl10(arrays: Arrays) -> Files:
    parts = [part for part in arrays if part.endswith("images")]
    files = {f"stl10_binary/{p[:-7]}_X.bin": arrays[p].transpose(0, 1, 3, 2).tobytes() for p in parts}
    labels = {part: (arrays[f"{part}_labels"] + 1).astype(np.uint8).tobytes() for part in ("train", "test")}
    return files | {f"stl10_binary/{part}_y.bin": content for part, content in labels.items()}


@pytest.mark.parametrize(("name", "published"), [("cifar100", cifar100), ("svhn", svhn), ("stl10", stl10)])
def test_the_original_files_give_these_pixels_and_others_are_refused(
    name: str, published: Callable[[Arrays], Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(RECIPES[name].md5) and not RECIPES[name].sha256
    recipe, arrays = small(name, unlabeled=12 if name == "stl10" else 0)
    archive = pack(tmp_path / "published.tar.gz", published(arrays))
    digests = {archive.name: hashlib.md5(archive.read_bytes()).hexdigest()}
    recipe = replace(recipe, sha256={}, md5=digests)
    monkeypatch.setitem(RECIPES, name, recipe)
    fetch(name, archive)
    stored = fetched.load(recipe)
    assert all(np.array_equal(stored[part], arrays[part]) for part in recipe.parts)
    dataset = fetched.stl10(sites=3) if name == "stl10" else getattr(fetched, name)()
    assert torch.equal(dataset.test.samples.data, torch.from_numpy(arrays["test_images"]))
    if dataset.sites:
        assert dataset.sites.offsets.tolist() == [0, 4, 8, 12]
        assert len(federate(dataset, Split(validation=0), labels=5, clients=9).server) == 5
    other = replace(recipe, md5={archive.name: "0" * 32})
    with pytest.raises(FedfewError, match=r"E202 .*its MD5 differs"):
        decode(other, archive)
    damaged = cache_folder() / name / "train_labels.npy"
    np.save(damaged, (arrays["train_labels"] + 1) % 10)
    with pytest.raises(FedfewError, match=r"E202 .*hash differs"):
        fetched.load(recipe)


def test_medmnist_by_name_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, buffer = np.random.default_rng(0), io.BytesIO()
    parts = {"train": 30, "val": 6, "test": 12}
    images = {f"{part}_images": rng.integers(0, 256, (n, 64, 64, 3), np.uint8) for part, n in parts.items()}
    labels = {f"{part}_labels": np.arange(n, dtype=np.uint8)[:, None] % 7 for part, n in parts.items()}
    np.savez(buffer, **images, **labels)  # type: ignore[arg-type]
    files = write(tmp_path / "here", {"dermamnist_64.npz": buffer.getvalue()})
    with pytest.raises(FedfewError, match=r"E202 .*its MD5 differs"):
        fetch("dermamnist_64", files)
    with pytest.raises(FedfewError, match=r"E201 .*fedfew data fetch dermamnist_64"):
        npz.medmnist(subset="dermamnist", size=64)
    url = npz.medmnist_files()["dermamnist_64"][0]
    monkeypatch.setitem(npz.medmnist_files(), "dermamnist_64", (url, hashlib.md5(buffer.getvalue()).hexdigest()))
    fetch("dermamnist_64", files)
    dataset = npz.medmnist(subset="dermamnist", size=64)
    assert len(dataset.train) == 36  # validation images join
    assert torch.equal(dataset.test.samples.data[0], torch.from_numpy(images["test_images"][0]).permute(2, 0, 1))
    assert dataset.classes[4] == "melanoma"
    assert len(npz.medmnist_files()) == 44
    with pytest.raises(FedfewError, match=r"E105 .*no set 'chestmnist'"):
        npz.medmnist(subset="chestmnist")


def leaf(writers: dict[str, list[int]]) -> bytes:
    data = {w: {"x": [[y / 61] * 784 for y in labels], "y": labels} for w, labels in writers.items()}
    return json.dumps({"users": list(writers), "num_samples": [], "user_data": data}).encode()


def test_femnist_writers_are_clients(tmp_path: Path) -> None:
    write(tmp_path, {"train/a.json": leaf({"f01": [0, 1, 2], "f02": [61]}), "train/b.json": leaf({"f03": [1, 0]})})
    write(tmp_path, {"test/a.json": leaf({"f01": [5]})})
    dataset = femnist(path=str(tmp_path))
    assert dataset.users is not None
    assert dataset.users.tolist() == [0, 0, 0, 1, 2, 2]
    assert dataset.train.labels.tolist() == [0, 1, 2, 61, 1, 0]
    assert dataset.train.samples.data[3].unique().tolist() == [255]
    assert [dataset.classes[c] for c in (0, 10, 61)] == ["0", "A", "z"]
    federation = federate(dataset, Split(validation=0), labels=0, clients=3, kind="users")
    assert sorted(federation.partition.sizes.tolist()) == [1, 2, 3]
    write(tmp_path, {"train/c.json": b'{"users": ["x"], "user_data": {"x": {"x": [[2]], "y": [0]}}}'})
    with pytest.raises(FedfewError, match=r"E204 .*c.json"):
        femnist(path=str(tmp_path))
    with pytest.raises(FedfewError, match="E206"):
        femnist(path=str(tmp_path / "none"))


def test_femnist_from_parquet(tmp_path: Path) -> None:
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    cells = [{"bytes": picture(10 * i, (28, 28)), "path": None} for i in range(24)]
    columns = {"image": cells, "character": [i % 2 for i in range(24)], "writer_id": [f"f{i // 6}" for i in range(24)]}
    pq.write_table(pa.table(columns), tmp_path / "train-00000-of-00001.parquet")
    dataset = femnist(path=str(tmp_path))
    assert dataset.users is not None
    assert len(dataset.train) == len(dataset.users) == 20
    assert set(dataset.users.tolist()) == {0, 1, 2, 3}


def picture(value: int, size: tuple[int, int] = (10, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", size, value).save(buffer, "PNG")
    return buffer.getvalue()


def test_class_folders_as_of_imagenet(tmp_path: Path) -> None:
    for part, wnid, i in ((p, w, i) for p in ("train", "val") for w in ("n01", "n02") for i in range(3)):
        write(tmp_path, {f"{part}/{wnid}/p{i % 2}_{i}.png": picture(i)})
    dataset = image_folder(path=str(tmp_path), size=8, user=r"p(\d)_")
    assert dataset.classes == ("n01", "n02")
    assert dataset.train.labels.tolist() == dataset.test.labels.tolist() == [0] * 3 + [1] * 3
    assert dataset.users is not None
    assert dataset.users.tolist() == [0, 0, 1, 0, 0, 1]  # by path: p0_0, p0_2, p1_1
    assert len(image_folder(path=str(tmp_path / "train"), size=8).train) == 6  # no class has a sixth image
    for pattern in ("p(x)", "p[", "p"):
        with pytest.raises(FedfewError, match=r"E103 dataset\.user"):
            image_folder(path=str(tmp_path), size=8, user=pattern)


def test_a_table_as_of_isic(tmp_path: Path) -> None:
    write(tmp_path, {f"input/ISIC_{i}.png": picture(i) for i in range(4)})
    rows = ["image,MEL,NV", "ISIC_0,1.0,0.0", "ISIC_1,0.0,1.0", "ISIC_3,0.0,1.0", "ISIC_9,1.0,0.0"]
    write(tmp_path, {"truth.csv": "\n".join(rows).encode(), "twice.csv": b"image,MEL,NV\nISIC_0,1,1"})
    dataset = image_folder(path=str(tmp_path), table="truth.csv", size=8, channels=1)
    assert dataset.classes == ("MEL", "NV")
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.train.samples.data[:, 0, 0, 0].tolist() == [0, 1, 3]
    assert [problem.path for problem in dataset.problems] == ["ISIC_9"]
    with pytest.raises(FedfewError, match=r"E206 .*ISIC_0 is of 2 classes"):
        image_folder(path=str(tmp_path), table="twice.csv")


def test_a_name_on_the_hub() -> None:
    expected = load_config("quick", {"dataset.name": "huggingface", "dataset.hub": "ylecun/mnist"}).document
    for source, overrides in (
        ("quick", {"dataset.name": "huggingface:ylecun/mnist"}),
        ({"base": "quick", "dataset": {"name": "huggingface:ylecun/mnist"}}, {}),
    ):
        assert load_config(source, overrides).document == expected


class EveryOther:
    """As a partitioner of flwr-datasets: it is given a dataset, and loads a part of it."""

    dataset: Any

    def __init__(self, num_partitions: int, partition_by: str, offset: int = 0) -> None:
        self.num_partitions, self.by, self.offset = num_partitions, partition_by, offset

    def load_partition(self, k: int) -> Any:
        chosen = range((k + self.offset) % self.num_partitions, len(self.dataset), self.num_partitions)
        return self.dataset.select(chosen) if self.by in self.dataset.column_names else None


def test_partitioners_of_flwr_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setitem(sys.modules, "flwr_datasets", ModuleType("flwr_datasets"))
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", SimpleNamespace(EveryOther=EveryOther))
    labels = np.arange(10) % 2
    options = {"partitioner": "EveryOther", "arguments": '{"offset": 1}'}
    partition = make_partition(labels, 2, "flower", 0, options)
    assert partition.of(0).tolist() == [1, 3, 5, 7, 9]
    for wrong in ({"partitioner": "Nothing"}, {"partitioner": "EveryOther", "arguments": '{"odd": 1}'}):
        with pytest.raises(FedfewError, match=r"E103|E115"):
            make_partition(labels, 2, "flower", 0, wrong)


@pytest.mark.parametrize("name", ["IidPartitioner", "DirichletPartitioner", "PathologicalPartitioner"])
def test_the_real_partitioners(name: str) -> None:
    pytest.importorskip("flwr_datasets")
    labels = np.arange(300) % 10
    arguments: dict[str, Any] = {"DirichletPartitioner": {"alpha": 0.5, "min_partition_size": 1}}
    arguments["PathologicalPartitioner"] = {"num_classes_per_partition": 6, "class_assignment_mode": "deterministic"}
    options = {"partitioner": name, "arguments": json.dumps(arguments.get(name, {}))}
    first, second = (make_partition(labels, 5, "flower", 3, options) for _ in range(2))
    assert first.hash == second.hash
    assert sorted(first.order.tolist()) == list(range(300))  # type: ignore[union-attr]
