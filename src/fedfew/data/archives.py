"""Reads named files from a folder or a tar archive into memory; nothing is unpacked to disk, sizes are capped."""

import gzip
import os
import tarfile
import tempfile
import zlib
from collections.abc import Set
from pathlib import Path, PurePosixPath
from typing import IO

from fedfew.core.errors import FedfewError

ARCHIVE_CAP = 600 * 2**20
"""The largest archive that is read, decompressed, unless its images are large: three times CIFAR-10."""
FILE_CAP = 64 * 2**20
"""The largest file that is taken, likewise: a third more than MNIST's images."""
MEMBER_CAP = 10_000
BLOCK = 2**20


def take(path: Path, names: Set[str], size: int = 0) -> dict[str, bytes]:
    """The files with these names (or with ``.gz``, then decompressed), within the caps, or twice ``size`` bytes.

    ``path`` is a folder (the files may be up to two levels down), a tar archive, or one of the files with the others
    next to it.
    """
    if not path.exists():
        raise FedfewError("E204", str(path), "there is no such file or folder", "Check the path after --from.")
    cap = max(FILE_CAP, 2 * size)
    try:
        if path.is_dir():
            return _from_folder(path, names, cap)
        if path.name.removesuffix(".gz") in names:
            return _from_folder(path.parent, names, cap)
        return _from_archive(path, names, cap)
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise FedfewError("E204", str(path), f"it cannot be read as a folder or tar archive ({error})") from error


def _from_folder(folder: Path, names: Set[str], cap: int) -> dict[str, bytes]:
    contents = {}
    for name in sorted(names):
        for pattern in (f"{deep}{name}{end}" for deep in ("", "*/", "*/*/") for end in ("", ".gz")):
            file = next((match for match in sorted(folder.glob(pattern)) if match.is_file()), None)
            if file is not None:
                with file.open("rb") as stream:
                    contents[name] = _capped(stream, str(file), cap, zipped=file.suffix == ".gz" and name != file.name)
                break
    return contents


def _from_archive(path: Path, names: Set[str], cap: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryFile() as plain:
        # Decompressed and counted first, so that no more than this is ever read, whatever a header claims.
        _inflate(path, plain, max(ARCHIVE_CAP, cap))
        with tarfile.open(fileobj=plain, mode="r:") as archive:
            for count, member in enumerate(archive):
                if count >= MEMBER_CAP:
                    raise FedfewError("E205", str(path), f"it has more than {MEMBER_CAP:,} members")
                _refuse_unsafe(path, member)
                file = PurePosixPath(member.name).name
                name = file if file in names else file.removesuffix(".gz")
                if name in names and name not in contents and member.isfile():
                    stream = archive.extractfile(member)
                    if stream is not None:
                        with stream:
                            contents[name] = _capped(stream, f"{path} {member.name}", cap, zipped=name != file)
    return contents


def _inflate(path: Path, plain: IO[bytes], cap: int) -> None:
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if zipped else raw as stream:
            while block := stream.read(BLOCK):
                if plain.tell() + len(block) > cap:
                    raise FedfewError("E205", str(path), f"it would grow beyond {cap // 2**20} MB")
                plain.write(block)
    plain.seek(0)


def _refuse_unsafe(path: Path, member: tarfile.TarInfo) -> None:
    parts = member.name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or ":" in parts[0] or os.path.isabs(member.name):  # noqa: PTH117 - a name, no path
        raise FedfewError("E205", str(path), f"its member {member.name[:80]!r} would land outside of the folder")
    if not (member.isfile() or member.isdir()):
        raise FedfewError("E205", str(path), f"its member {member.name[:80]!r} is a link or a device")


def _capped(stream: IO[bytes], where: str, cap: int, *, zipped: bool) -> bytes:
    with gzip.open(stream) if zipped else stream as source:
        content: bytes = source.read(cap + 1)
    if len(content) > cap:
        raise FedfewError("E205", where, f"it holds more than {cap // 2**20} MB")
    return content
