"""A site's own data: a folder of images, an NPZ with an array ``images``, a table, vectors or texts.

Labels are never read: of a table, only the columns that the server's encoder names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.samples import Samples, joined
from fedfew.data import npz
from fedfew.data.dataset import Unreadable
from fedfew.data.images.decode import probe, read_file
from fedfew.data.images.folders import scan_unlabeled
from fedfew.data.images.subjects import thinned, with_subjects
from fedfew.data.rows.datasets import described
from fedfew.data.rows.encoder import Encoder
from fedfew.data.rows.files import TEXT_FILES, Rows, is_rows, read_tables
from fedfew.data.samples import Images

NPZ_LIMIT = 64 << 30
"""Most bytes an NPZ may inflate to; a header that claims more is refused before anything is read."""


def load_samples(data: Path, about: Mapping[str, Any], most: int = 0, group: str = "") -> Samples:
    """The site's samples in the form that a server describes: images, rows of a table, or texts.

    At most ``most`` images of one person, if it is not 0; ``group`` is the pattern of file names that names persons.

    E417 if the server's encoder is none, or of another width than it says.
    """
    if "encoder" not in about and "text" not in about:
        return Images.described(load_images(data, tuple(about["shape"]), most, group), about)
    if "encoder" in about:
        encoder = Encoder.described(about["encoder"])
        if len(encoder.mean) != about["shape"][0] or not np.isfinite([*encoder.mean, *encoder.weight]).all():
            raise FedfewError("E417", "encoder", "has another width than the run's rows, or is not finite")
    return joined([described(rows, about) for rows in read_tables([data], about.get("text", ""))])


def own_rows(data: Path) -> list[Rows]:
    """The tables or files of text of a site, if its data are no images: an NPZ may hold either."""
    if data.is_dir():
        files = [path for path in data.rglob("*") if path.is_file()]
        texts = sum(path.suffix.lower() in TEXT_FILES for path in files)
        return read_tables([data], "text") if 2 * texts > len(files) else []
    if (
        not data.is_file()
        or not is_rows(data)
        or (data.suffix == ".npz" and npz.read_npz(data, ("images",), NPZ_LIMIT))
    ):
        return []
    return read_tables([data])


def load_images(data: Path, shape: tuple[int, ...], most: int = 0, group: str = "") -> Tensor:
    """The images as uint8 N×C×H×W of the run's shape; E509 if there are none."""
    channels, height, width = shape
    if not data.is_dir():
        images = read_npz(data)
    elif height != width:
        raise FedfewError("E417", str(data), f"the run has images of {height}×{width}; files are cut to squares")
    else:
        files = scan_unlabeled(data)
        images = (thinned(with_subjects(files, group), most) if most else files).read(height, channels).images
    if not len(images):
        raise FedfewError("E509", str(data), "contains no usable image")
    if tuple(images.shape[1:]) != tuple(shape):
        reason = f"its images are {'×'.join(map(str, images.shape[1:]))}, the run's {'×'.join(map(str, shape))}"
        raise FedfewError("E417", str(data), reason)
    return images


def read_npz(path: Path) -> Tensor:
    """The array ``images`` of an NPZ, with a channel if it has none; nothing else in the file is read."""
    try:
        array = npz.read_npz(path, ("images",), NPZ_LIMIT).get("images")
    except FedfewError as fault:
        raise fault if fault.code == "E205" else FedfewError("E509", str(path), fault.message) from None
    if array is None or not len(array):
        raise FedfewError("E509", str(path), "has no array `images`, or an empty one")
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        reason = f"`images` is {array.dtype} of {array.ndim} dimensions, not uint8 N×H×W or N×C×H×W"
        raise FedfewError("E509", str(path), reason)
    channels = array.shape[1:-2] or (1,)
    return torch.from_numpy(array.reshape(len(array), *channels, *array.shape[-2:]))


def count_images(data: Path) -> str:
    """The number of images, rows, or files that are not opened yet, in words; E509 if there are none."""
    if not data.is_dir() and (rows := own_rows(data)):
        return f"{sum(map(len, rows)):,} rows with the columns {', '.join(list(rows[0].columns)[:12])} in {data}"
    if not data.is_dir():
        images = read_npz(data)
        return f"{len(images):,} images of {'×'.join(map(str, images.shape[1:]))} in {data}"
    files = [path for path in data.rglob("*") if path.is_file()]
    if not any(path.suffix.lower() in TEXT_FILES or _seems_readable(path) for path in files):
        raise FedfewError("E509", str(data), f"none of its files ({len(files):,}) is a readable image")
    return f"{len(files):,} file{'s' * (len(files) > 1)} in {data}"


def _seems_readable(path: Path) -> bool:
    """Judged by the header alone."""
    try:
        probe(read_file(path))
    except Unreadable:
        return False
    return True
