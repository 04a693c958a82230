"""Own images in folders: what is found, what is refused, the cache, and a federation whose clients are the sites."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.digit_folders import put, write_digits
from tests.data.image_zoo import READ, REMARKED, SKIPPED, zoo

from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.data.federation import Split, federate
from fedfew.data.images import folders
from fedfew.data.images.folders import scan, scan_unlabeled
from fedfew.data.images.own import check_folder, folder
from fedfew.data.included import mini_mnist


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own cache."""
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return write_digits(tmp_path / "digits", server=40, clients=60, test=30)


def codes(root: Path, batch: int = 1, *, allow_overlap: bool = False) -> list[tuple[str, bool]]:
    errors, warnings = check_folder(scan(root).read(28, 1), batch, allow_overlap=allow_overlap)
    return [(fault.code, True) for fault in errors] + [(fault.code, False) for fault in warnings]


def test_a_folder_becomes_a_dataset_with_its_sites(digits: Path) -> None:
    dataset = folder(path=str(digits), size=28, channels=1, flips=False)
    original = mini_mnist()
    assert dataset.classes == tuple(f"digit {d}" for d in range(10))
    assert dataset.sites is not None
    assert dataset.sites.names == tuple(f"hospital-{k}" for k in range(4))
    by_class = torch.sort(original.train.labels[:40], stable=True)
    assert torch.equal(dataset.train.labels, by_class.values)
    assert torch.equal(dataset.train.samples.data, original.train.samples.data[:40][by_class.indices])
    owner = original.train.labels[40:100] * 4 // 10
    for k in range(4):
        held = dataset.sites.samples.data[dataset.sites.offsets[k] : dataset.sites.offsets[k + 1]]
        assert torch.equal(held, original.train.samples.data[40:100][owner == k])


def test_what_file_managers_leave_behind_is_not_looked_at(digits: Path) -> None:
    before = scan(digits).read(28, 1)
    for place in (digits, digits / "server", digits / "server" / "digit 3", digits / "clients" / "hospital-1"):
        for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._photo.png"):
            (place / name).write_bytes(b"\0\0\0\1Bud1")
        (place / "__MACOSX").mkdir()
        (place / "__MACOSX" / "._photo.png").write_bytes(b"\0")
    after = scan(digits).read(28, 1)
    assert after.groups == before.groups
    assert after.unused == ()
    assert (after.files, after.problems) == (before.files, before.problems)
    assert scan_unlabeled(digits / "clients" / "hospital-1").read(28, 1).problems == []


def test_sites_become_the_clients_and_nobody_knows_their_labels(digits: Path) -> None:
    dataset = folder(path=str(digits), size=28, channels=1)
    federation = federate(dataset, Split(validation=1000, seed=3), labels=1000, clients=100)
    assert federation.sites == tuple(f"hospital-{k}" for k in range(4)) and federation.partition.clients == 4
    assert (federation.truth == -1).all() and len(federation.server) == 40
    assert (len(federation.validation), len(federation.test)) == (7, 23)  # a quarter of 30 is held out, not 1000
    held_out = torch.cat([federation.validation.samples.data, federation.test.samples.data])
    assert set(map(pixels_of, held_out)) == set(map(pixels_of, dataset.test.samples.data))
    assert dataset.sites is not None
    for k in range(4):
        mine = federation.samples.data[torch.from_numpy(federation.partition.of(k))]
        assert torch.equal(mine, dataset.sites.samples.data[dataset.sites.offsets[k] : dataset.sites.offsets[k + 1]])
    other = federate(dataset, Split(validation=8, validation_from="server", test=12), labels=20, clients=4)
    assert (len(other.server), len(other.validation), len(other.test)) == (20, 8, 12)
    for split, code in ((Split(validation=0, split="paper"), "E113"), (Split(validation=0, test=31), "E109")):
        with pytest.raises(FedfewError, match=code):
            federate(dataset, split, labels=20, clients=4)


def pixels_of(image: torch.Tensor) -> tuple[int, ...]:
    return tuple(image.flatten().tolist())


def test_the_zoo_is_named_file_by_file(digits: Path) -> None:
    animals = zoo()
    for name, content, _ in animals:
        (digits / "clients" / "hospital-1" / name).write_bytes(content)
    os.mkfifo(digits / "clients" / "hospital-1" / "pipe.png")
    (digits / "clients" / "hospital-1" / "link.png").symlink_to(digits / "nowhere.png")
    strange = os.fsdecode(os.fsencode(digits / "clients" / "hospital-1") + b"/\xff\xfe.png")
    Path(strange).write_bytes(b"no image")
    (digits / "server" / "loose.png").write_bytes(b"")
    contents = scan(digits).read(16, 1)
    fates = {Path(problem.path).name: problem.skipped for problem in contents.problems}
    expected = {name: fate == SKIPPED for name, _, fate in animals if fate != READ}
    assert fates == expected | {"pipe.png": True, "link.png": True, "\\xff\\xfe.png": True, "loose.png": True}
    assert len(contents.rows("clients")) == 60 + sum(fate in (READ, REMARKED) for _, _, fate in animals)
    assert len(folder(path=str(digits), size=16, channels=1).train) == 40


def test_files_are_read_once_and_again_when_they_change(digits: Path, cache: Path) -> None:
    calls: list[int] = []

    def read() -> torch.Tensor:
        return scan_unlabeled(digits / "clients").read(20, 3, lambda done, total: calls.append(done)).images

    first = read()
    assert calls == list(range(1, 61))
    assert torch.equal(first, read())
    assert len(calls) == 60
    put(digits / "clients" / "hospital-0" / "new.png", torch.full((28, 28), 7, dtype=torch.uint8))
    more = read()
    assert (len(more), len(calls)) == (61, 121)
    stored = next(cache.glob("folders/*/images.npy"))
    stored.write_bytes(stored.read_bytes()[:-1] + b"\x07")
    assert torch.equal(read(), more)


def test_a_cache_that_cannot_be_used_costs_only_time(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(digits / "server" / "digit 1" / "a file" / "x"))
    (digits / "server" / "digit 1" / "a file").write_bytes(b"")
    read = scan_unlabeled(digits / "clients").read(20, 1)
    assert (read.images.shape, read.problems) == ((60, 1, 20, 20), [])


@pytest.mark.parametrize(("missing", "said"), [("server", "0 class folders"), ("clients", "clients/ has no folders")])
def test_a_missing_part_is_refused(digits: Path, missing: str, said: str) -> None:
    shutil.rmtree(digits / missing)
    with pytest.raises(FedfewError, match=f"E206.*{said}"):
        federate(folder(path=str(digits), size=28, channels=1), Split(validation=0), labels=10, clients=4)
    assert ("E206", True) in codes(digits)  # `check` says the same


def test_no_test_folder_is_only_remarked(digits: Path) -> None:
    shutil.rmtree(digits / "test")
    assert codes(digits) == [("E206", False)]
    dataset = folder(path=str(digits), size=28, channels=1)
    assert len(federate(dataset, Split(validation=50), labels=40, clients=4).test) == 0


def test_paths_that_are_no_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, said in (("", "missing"), (tmp_path / "gone", "does not exist"), (tmp_path / "file", "is a file")):
        with pytest.raises(FedfewError, match=f"E206.*{said}"):
            scan(path)


def test_the_same_image_at_server_and_in_test_is_refused_unless_allowed(digits: Path) -> None:
    image = next((digits / "server" / "digit 3").iterdir())
    (digits / "test" / "digit 3" / "again.bmp").write_bytes(b"")
    Image.open(image).save(digits / "test" / "digit 3" / "again.bmp")  # other bytes, same pixels
    with pytest.raises(ConfigErrors, match="E207"):
        folder(path=str(digits), size=28, channels=1)
    assert ("E207", False) in codes(digits, allow_overlap=True)
    assert len(folder(path=str(digits), size=28, channels=1, allow_overlap=True).test) == 31
    [copy] = scan(digits).read(28, 1).copies
    assert (copy.path, copy.across, copy.in_two_classes) == ("test/digit 3/again.bmp", True, False)


def test_copies_at_sites_and_in_two_classes_are_told(digits: Path) -> None:
    image = next((digits / "server" / "digit 3").iterdir())
    shutil.copy(image, digits / "server" / "digit 5" / "torn.png")
    shutil.copy(image, digits / "clients" / "hospital-1" / "copy.png")
    assert codes(digits) == [("E210", False), ("E210", False)]
    copies = {copy.path: copy.in_two_classes for copy in scan(digits).read(28, 1).copies}
    assert copies == {"server/digit 5/torn.png": True, "clients/hospital-1/copy.png": False}


def test_names_small_sites_empty_classes_and_unused_folders_are_told(digits: Path) -> None:
    (digits / "test" / "digit 3").rename(digits / "test" / "Digit 3")
    assert codes(digits)[0] == ("E208", True)
    (digits / "test" / "Digit 3").rename(digits / "test" / "three")
    assert codes(digits) == [("E208", True), ("E208", False)]
    shutil.rmtree(digits / "test" / "three")
    assert codes(digits) == [("E208", False)]
    (digits / "clients" / "empty").mkdir()
    (digits / "client").mkdir()
    assert codes(digits, batch=1) == [("E206", False), ("E208", False), ("E211", False)]
    assert folder(path=str(digits), size=28, channels=1).sites is not None
    (digits / "server" / "digit x").mkdir()
    assert codes(digits)[0] == ("E206", True)


def test_linked_classes_are_read_and_circles_are_not(digits: Path, tmp_path: Path) -> None:
    (digits / "clients" / "hospital-0").rename(tmp_path / "elsewhere")
    (digits / "clients" / "hospital-0").symlink_to(tmp_path / "elsewhere")
    (digits / "clients" / "hospital-1" / "circle").symlink_to(digits)
    contents = scan(digits).read(28, 1)
    assert len(contents.rows("clients")) == 60
    assert [problem.path for problem in contents.problems] == ["clients/hospital-1/circle"]


def test_order_does_not_depend_on_the_file_system(tmp_path: Path) -> None:
    for name in ("b/2.png", "a/1.png", "B/0.png", "a/sub/3.png"):
        put(tmp_path / "x" / name, torch.full((9, 9), len(name), dtype=torch.uint8))
    images = scan_unlabeled(tmp_path / "x").read(9, 1).images
    np.testing.assert_array_equal(images[:, 0, 0, 0].numpy(), [7, 7, 11, 7])


def test_a_folder_is_scanned_and_read_once_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "server" / "a" / "1.png"
    image.parent.mkdir(parents=True)
    Image.new("L", (8, 8), 7).save(image)
    reads: list[object] = []

    def read(*given: object, **more: object) -> object:
        reads.append(given)
        return torch.zeros(1), [0], []

    monkeypatch.setattr(folders, "read_files", read)
    with folders.read_once():
        assert folders.scan(tmp_path) is folders.scan(tmp_path)
        assert all(len(folders.scan(tmp_path).read(8, 1).files) == 1 for _ in range(3))
        folders.scan(tmp_path).read(16, 1)
    assert len(reads) == 2
    assert folders.scan(tmp_path) is not folders.scan(tmp_path)
