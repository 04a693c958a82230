"""Own arrays in NPZ files: MedMNIST's layout and others, and everything that is refused before it is inflated."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedfew.core.errors import FedfewError
from fedfew.data.federation import Split, federate
from fedfew.data.included import mini_mnist
from fedfew.data.npz import npz

Array = NDArray[Any]


def medmnist(channels: int = 3, side: int = 16) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for part, count in (("train", 40), ("val", 8), ("test", 12)):
        shape = (count, side, side) if channels == 1 else (count, side, side, channels)
        arrays[f"{part}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 4)[:, None].astype(np.uint8)
    return arrays


def saved_npz(path: Path, arrays: dict[str, Array]) -> str:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return str(path)


@pytest.mark.parametrize("channels", [1, 3])
def test_medmnist_is_read_without_its_package(tmp_path: Path, channels: int) -> None:
    arrays = medmnist(channels)
    dataset = npz(path=saved_npz(tmp_path / "m.npz", arrays), flips=False)
    assert dataset.train.samples.data.shape == (48, channels, 16, 16)
    first = arrays["train_images"][0]
    np.testing.assert_array_equal(
        dataset.train.samples.data[0], first[None] if channels == 1 else first.transpose(2, 0, 1)
    )
    np.testing.assert_array_equal(dataset.train.labels[40:], arrays["val_labels"][:, 0])
    assert (len(dataset.test), dataset.classes) == (12, ("0", "1", "2", "3"))
    assert dataset.train.samples.about()["flips"] is False
    federation = federate(dataset, Split(validation=4), labels=8, clients=4, kind="iid")
    assert federation.partition.clients == 4


def test_plain_and_keras_arrays(tmp_path: Path) -> None:
    digits = mini_mnist()
    images, labels = digits.train.samples.data[:120, 0].numpy(), digits.train.labels[:120].numpy()
    names = np.array([f"digit {d}" for d in range(10)])
    path = saved_npz(tmp_path / "plain.npz", {"images": images, "labels": labels, "classes": names})
    plain = npz(path=path)
    assert plain.classes == tuple(names)
    counts = np.bincount(labels)
    assert plain.test.labels.bincount().tolist() == (counts // 6).tolist()  # one in six of each class is held out
    every = torch.cat([plain.train.samples.data, plain.test.samples.data]).flatten(1)
    assert {tuple(row) for row in every.tolist()} == {tuple(row) for row in images.reshape(120, -1).tolist()}
    keras = {"x_train": images[:100], "y_train": labels[:100], "x_test": images[100:], "y_test": labels[100:]}
    dataset = npz(path=saved_npz(tmp_path / "keras.npz", keras))
    assert torch.equal(dataset.test.labels, digits.train.labels[100:120])


def test_floats_and_channel_orders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (12, 10, 10), dtype=np.uint8)
    labels = np.arange(12) % 2
    expected = torch.from_numpy(grey)[:, None]
    forms: dict[str, Array] = {"float": grey / np.float32(255), "nchw": grey[:, None], "nhwc": grey[..., None]}
    for name, images in forms.items():
        path = saved_npz(tmp_path / f"{name}.npz", {"train_images": images, "train_labels": labels,
                                                     "test_images": images, "test_labels": labels})  # fmt: skip
        assert torch.equal(npz(path=path).train.samples.data, expected), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train_labels": None}, "it holds"),
        ({"train_labels": np.zeros((40, 14), np.uint8)}, "one whole number"),
        ({"train_labels": np.zeros(40)}, "one whole number"),
        ({"train_labels": np.zeros(39, np.uint8)}, "40 train_images have 39 train_labels"),
        ({"train_labels": np.full(40, -1)}, "below 0"),
        ({"train_labels": np.full(40, 10**12)}, "labels go up to"),
        ({"train_images": np.zeros((40, 16, 16, 16, 3), np.uint8)}, "square images"),
        ({"train_images": np.zeros((40, 16, 17), np.uint8)}, "square images"),
        ({"train_images": np.full((40, 16, 16), 300, np.int64)}, "is int64"),
        ({"test_images": np.zeros((12, 9, 9, 3), np.uint8)}, "different shapes"),
        ({"classes": np.array(["a", "b"])}, "2 names"),
        ({"train_images": np.array([object()] * 40)}, "Python objects"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Array | None], said: str) -> None:
    arrays = {name: array for name, array in (medmnist() | change).items() if array is not None}
    with pytest.raises(FedfewError, match=f"E204.*{said}"):
        npz(path=saved_npz(tmp_path / "m.npz", arrays))


def member(array_header: bytes, body: bytes) -> bytes:
    head = array_header.ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body


def zipped(path: Path, content: dict[str, bytes], level: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", level) as archive:
        for name, body in content.items():
            archive.writestr(name, body)
    return str(path)


def test_bombs_are_refused_before_they_grow(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((70_000, 32, 32), np.uint8))
    path = zipped(tmp_path / "bomb.npz", {"train_images.npy": buffer.getvalue()})
    assert len(buffer.getvalue()) / Path(path).stat().st_size > 900
    with pytest.raises(FedfewError, match=r"E205.*times its size"):
        npz(path=path)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 28, 28), }"
    with pytest.raises(FedfewError, match=r"E202.*claims"):
        npz(path=zipped(tmp_path / "claim.npz", {"train_images.npy": member(header, b"few bytes")}))
    many = {f"member {i}.npy": b"" for i in range(100)}
    with pytest.raises(FedfewError, match=r"E205.*100 members"):
        npz(path=zipped(tmp_path / "many.npz", many))


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    whole = Path(saved_npz(tmp_path / "m.npz", medmnist())).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    broken = bytearray(whole)
    broken[200:260] = bytes(60)
    (tmp_path / "broken.npz").write_bytes(broken)
    for name in ("text", "half", "broken"):
        with pytest.raises(FedfewError, match=r"E20[24]"):
            npz(path=str(tmp_path / f"{name}.npz"))
    for path in ("", str(tmp_path / "gone.npz"), str(tmp_path)):
        with pytest.raises(FedfewError, match="E206"):
            npz(path=path)
    odd = zipped(tmp_path / "odd.npz", {"train_images.npy": b"\x93NUMPY\x09\x00", "train_labels.npy": b""})
    with pytest.raises(FedfewError, match="E204"):
        npz(path=odd)
