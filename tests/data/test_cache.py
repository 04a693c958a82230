"""The cache: what was fetched comes back bit for bit, and damage is found and mended."""

import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data import archives_for_tests as make
from tests.data.archives_for_tests import install, same

from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS, cache, fetched, included
from fedfew.data.fetched import RECIPES, Recipe
from fedfew.data.sources import fetch, inventory

pytestmark = pytest.mark.usefixtures("own_cache")


def stored(monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, Path]:
    recipe, arrays = install("mnist", monkeypatch)
    return recipe, fetched.store(recipe, arrays)


def test_one_flipped_bit_is_found_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, folder = stored(monkeypatch)
    arrays = fetched.load(recipe)
    file = folder / "train_images.npy"
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    with pytest.raises(FedfewError, match=r"E202 .*train_images are not those of mnist.*fedfew data fetch mnist"):
        DATASETS["mnist"]()
    fetch("mnist", make.pack(tmp_path / "again.tgz", make.idx(arrays)))
    assert same(fetched.load(recipe), arrays)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize(
    "array", [None, np.zeros((6, 28, 28), np.uint8), np.zeros((6, 1, 28, 28), np.int64), np.array([print], object)]
)
def test_a_damaged_cache_is_refused(monkeypatch: pytest.MonkeyPatch, array: np.ndarray | None) -> None:
    recipe, folder = stored(monkeypatch)
    if array is None:
        (folder / "test_labels.npy").unlink()
    else:
        np.save(folder / "test_images.npy", array)
    with pytest.raises(FedfewError, match="E202"):
        fetched.load(recipe)


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
    recipe, arrays = install("mnist", monkeypatch)
    (tmp_path / "cache").write_text("a file, no folder")
    with pytest.raises(FedfewError, match="E305"):
        fetched.store(recipe, arrays)


def test_a_failed_write_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, folder = stored(monkeypatch)
    arrays = fetched.load(recipe)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(FedfewError, match=r"E305 .*disk full"):
        patch.setattr(np, "save", full)
        fetched.store(recipe, arrays)
    assert list(folder.parent.iterdir()) == [folder]
    assert same(fetched.load(recipe), arrays)


def test_a_quicker_process_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = install("mnist", monkeypatch)
    rename = Path.rename

    def overtaken(self: Path, target: Path) -> Path:
        if self.name == "new" and not target.exists():
            shutil.copytree(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    fetched.store(recipe, arrays)
    assert same(fetched.load(recipe), arrays)


def test_the_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = stored(monkeypatch)
    lines = {entry["name"]: entry for entry in inventory()}
    assert list(lines) == [name for name in DATASETS if name in (*included.SHIPPED, *RECIPES)]
    assert [name for name, entry in lines.items() if entry["fetched"]] == ["mini-mnist", "mini-cifar", "mnist"]
    assert [lines["cifar10"][key] for key in ("images", "shape", "classes")] == [60_000, [3, 32, 32], 10]
    assert (lines["mnist"]["path"], lines["mnist"]["images"]) == (folder, 26)
    for name in included.SHIPPED:
        data = DATASETS[name]()
        told = lines[name]
        assert (len(data.train) + len(data.test), len(data.classes)) == (told["images"], told["classes"])
        assert data.train.samples.about()["shape"] == told["shape"]
    assert lines["mini-mnist"]["path"].is_file()


def test_the_embedded_files_are_checked_small_and_say_where_they_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(included.asset(name).stat().st_size for name in included.SHIPPED) < 3 * 10**6
    note = (included.ASSETS / "README.md").read_text()
    assert all(words in note for words in ("LeCun", "ShareAlike 3.0", "Krizhevsky"))
    for name in included.SHIPPED:
        (tmp_path / f"{name}.npz").write_bytes(included.asset(name).read_bytes()[:-1])
    monkeypatch.setattr(included, "ASSETS", tmp_path)
    for load in (inspect.unwrap(included.mini_mnist), included.mini_cifar):  # conftest keeps the digits in memory
        with pytest.raises(FedfewError, match="E202"):
            load()
