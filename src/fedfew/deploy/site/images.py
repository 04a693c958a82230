"""A site's own images: a folder of image files, or an NPZ with an array ``images``; labels are never read."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.data import npz
from fedfew.data.dataset import Unreadable
from fedfew.data.images.decode import probe, read_file
from fedfew.data.images.folders import scan_unlabeled

NPZ_LIMIT = 64 << 30
"""Most bytes an NPZ may inflate to; a header that claims more is refused before anything is read."""


def load_images(data: Path, shape: tuple[int, ...]) -> Tensor:
    """The images as uint8 N×C×H×W of the run's shape; E509 if there are none."""
    channels, height, width = shape
    if not data.is_dir():
        images = read_npz(data)
    elif height != width:
        raise FedfewError("E417", str(data), f"the run has images of {height}×{width}; files are cut to squares")
    else:
        images = scan_unlabeled(data).read(height, channels).images
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
    """The number of images (or of files, if they are not opened yet), in words; E509 if there are none."""
    if not data.is_dir():
        images = read_npz(data)
        return f"{len(images):,} images of {'×'.join(map(str, images.shape[1:]))} in {data}"
    files = [path for path in data.rglob("*") if path.is_file()]
    if not any(map(_seems_readable, files)):
        raise FedfewError("E509", str(data), f"none of its files ({len(files):,}) is a readable image")
    return f"{len(files):,} file{'s' * (len(files) > 1)} in {data}"


def _seems_readable(path: Path) -> bool:
    """Judged by the header alone."""
    try:
        probe(read_file(path))
    except Unreadable:
        return False
    return True
