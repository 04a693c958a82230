"""The user's cache folder: datasets that were fetched, decoded images, features."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedfew.core.errors import FedfewError


def cache_folder() -> Path:
    """$FEDFEW_DATA, or the user's cache folder."""
    if own := os.environ.get("FEDFEW_DATA"):
        return Path(own).expanduser()
    general = os.environ.get("XDG_CACHE_HOME")
    return (Path(general) if general else Path.home() / ".cache") / "fedfew" / "data"


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the target's place at the end; E305 if it cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
            made, old = Path(temporary) / "new", Path(temporary) / "old"
            made.mkdir()
            yield made
            with contextlib.suppress(FileNotFoundError):
                target.rename(old)
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():  # else another process was faster, with the same result
                    raise
    except OSError as error:
        raise FedfewError("E305", str(target), f"it cannot be written ({error})") from error
