"""RandAugment (Cubuk et al., 2020) on a whole batch of uint8 images N×C×H×W, with 1 or 3 channels.

Each layer draws one operation per image, sorts the batch by operation and treats each kind in one go: operations on
bits, blends with a second image (as Pillow's ImageEnhance does them), and affine maps of the pixels. The results agree
with Pillow within one level.

The arithmetic is NumPy's: on a batch of 64 small images it is twice as fast as torch's, whose calls cost more than
their work and whose conversion of floats to bytes is not vectorised. torch has the faster gather.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import radians

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew.data.samples.images import GREY, gather

LEVELS = 10
"""Steps from the mildest form of an operation (level 0) to the strongest (level 9)."""

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Spans = list[slice]
"""Where the images of each operation of a kind lie."""

_FULL = {
    "identity": (0, 0.0),
    "equalize": (0, 0.0),
    "solarize": (1, 1.0),  # the threshold falls from 256 to 0
    "posterize": (2, 4.0),  # up to 4 of 8 bits are dropped
    "autocontrast": (0, 0.0),
    "brightness": (0, 0.9),  # the factor of the blend is 1 ± 0.9
    "contrast": (0, 0.9),
    "color": (0, 0.9),
    "sharpness": (0, 0.9),
    "rotate": (3, radians(30)),
    "shear_x": (4, 0.3),
    "shear_y": (5, 0.3),
    "translate_x": (6, 0.3),  # of the width
    "translate_y": (7, 0.3),
}
"""Each operation: which quantity it sets, and that quantity at full strength. Operations of one kind are adjacent."""
_QUANTITIES: Floats = np.zeros((8, len(_FULL)), np.float32)
for _op, (_quantity, _most) in enumerate(_FULL.values()):
    _QUANTITIES[_quantity, _op] = _most
POOL = tuple(_FULL)


def rand_augment(
    images: Tensor,
    rng: torch.Generator,
    *,
    layers: int = 2,
    magnitude: int | tuple[int, int] = LEVELS,
    pool: Sequence[str] = POOL,
) -> Tensor:
    """``layers`` operations one after the other on each image, each drawn from the pool and at a random level.

    An operation's level is drawn from 0 … M − 1 with M = ``magnitude``; with a pair (low, high) each image draws its
    own M from low … high. So the default is FixMatch's uniform strength, and FedMatch's variant is ``layers=6,
    magnitude=(2, 5), pool=POOL[1:]``. The direction of an operation (rotation, brighter or darker) is random.
    """
    low, high = magnitude if isinstance(magnitude, tuple) else (magnitude, magnitude)
    which, level, coin = torch.rand((3, layers, len(images)), generator=rng).numpy()
    ceiling = torch.randint(low, high + 1, (len(images),), generator=rng).numpy()
    numbers = np.array([POOL.index(name) for name in pool])
    ops = numbers[(which * np.float32(len(pool))).astype(np.int64)]
    amounts = np.floor(level * ceiling) / (LEVELS - 1)
    # At level 0 all but equalize and autocontrast leave the image as it is.
    ops[(amounts == 0) & (_QUANTITIES[:, ops] > 0).any(0)] = POOL.index("identity")
    return operate(images, ops, np.where(coin < 0.5, -amounts, amounts))


def operate(images: Tensor, ops: NDArray[np.int64], amounts: NDArray[np.floating]) -> Tensor:
    """Layer by layer (L×N), ``POOL[ops[l, i]]`` on image i at strength ``amounts[l, i]`` in [−1, 1].

    The sign is the direction of the operations that have one.
    """
    batch: Bytes = images.cpu().contiguous().numpy()  # below, a reshape must be a view
    doses = _doses(ops, amounts, batch.shape[2], batch.shape[3])
    position = np.arange(len(batch))  # where each image is: each layer sorts them again
    for op, dose in zip(ops, doses, strict=True):
        order = op.argsort()
        ends = np.searchsorted(op[order], np.arange(len(POOL) + 1)).tolist()
        batch, sorted_dose = batch[position[order]], dose[order]
        for first, last, treat in _KINDS:
            start, stop = ends[first], ends[last + 1]
            if start < stop:
                spans = [slice(a - start, b - start) for a, b in pairwise(ends[first : last + 2])]
                treat(batch[start:stop], sorted_dose[start:stop], spans)
        position = order.argsort()
    return torch.from_numpy(batch[position]).to(images.device)


def _doses(ops: NDArray[np.int64], amounts: NDArray[np.floating], height: int, width: int) -> Floats:
    """L×N×9: blend factor, solarize threshold, posterize mask, and the affine map from target to source.

    The map (a b c d e f) takes (x, y), counted from the centre, to (a·x + b·y + c, d·x + e·y + f).
    """
    quantities = _QUANTITIES[:, ops] * amounts.astype(np.float32)
    factor, solarize, posterize, angle, shear_x, shear_y, translate_x, translate_y = quantities
    threshold = 256 * (1 - np.abs(solarize))
    mask = 256 - np.exp2(np.rint(np.abs(posterize)))
    cos, sin = np.cos(angle), np.sin(angle)
    affine = (cos, shear_x - sin, width * translate_x, shear_y + sin, cos, height * translate_y)
    return np.stack((factor + 1, threshold, mask, *affine), -1)


def _equalize(images: Bytes, dose: Floats, spans: Spans) -> None:
    """Spread each channel's values so that all are about equally frequent, in Pillow's whole numbers."""
    flat = images.reshape(images.shape[0] * images.shape[1], -1)
    rows = np.arange(len(flat))
    keys = flat + (rows * 256)[:, None]
    histogram = np.bincount(keys.ravel(), minlength=len(flat) * 256).reshape(-1, 256)
    below = histogram.cumsum(1)
    below -= histogram
    step = below[rows, flat.max(1)] // 255
    # Division as floats is exact here, and much faster than of whole numbers.
    spread = (below + (step // 2)[:, None]) / np.maximum(step, 1)[:, None]
    table = spread.clip(0, 255, out=spread).astype(np.uint8)
    table[step == 0] = np.arange(256)
    images[:] = table.ravel()[keys].reshape(images.shape)


def _solarize(images: Bytes, dose: Floats, spans: Spans) -> None:
    """Invert the values from a threshold on."""
    bright = images >= np.ceil(dose[:, 1, None, None, None]).astype(np.uint16)
    images ^= np.negative(bright.view(np.uint8))  # 1 becomes 255, and x ^ 255 is 255 − x


def _posterize(images: Bytes, dose: Floats, spans: Spans) -> None:
    """Drop the lower bits."""
    images &= dose[:, 2, None, None, None].astype(np.uint8)


def _blend(images: Bytes, dose: Floats, spans: Spans) -> None:
    """f·image + (1 − f)·other, the other being black, mean grey, the grey image or a smooth one; and autocontrast."""
    autocontrast, _, contrast, color, sharpness = spans
    source = images.reshape(*images.shape[:2], -1).astype(np.float32)
    factor = dose[:, 0, None, None]
    out = source * factor
    if contrast.start < color.stop:
        grey = np.rint(np.einsum("c,ncp->np", _LUMA[images.shape[1]], source[contrast.start : color.stop]))[:, None]
        grey[: contrast.stop - contrast.start] = np.rint(grey[: contrast.stop - contrast.start].mean(2, keepdims=True))
        grey *= 1 - factor[contrast.start : color.stop]
        out[contrast.start : color.stop] += grey
    if sharpness.start < sharpness.stop:
        out[sharpness] += (1 - factor[sharpness]) * _smooth(source[sharpness], images.shape[3])
    if autocontrast.start < autocontrast.stop:
        low, high = source[autocontrast].min(2, keepdims=True), source[autocontrast].max(2, keepdims=True)
        flat = low == high
        stretch = np.where(flat, np.float32(1), np.float32(255)) / (high - low + flat)
        out[autocontrast] = (source[autocontrast] - low * ~flat) * stretch
    out += 1e-3  # keeps a product that should be whole from being truncated to the integer below
    np.copyto(images, out.clip(0, 255, out=out).reshape(images.shape), casting="unsafe")


def _smooth(source: Floats, width: int) -> Floats:
    """The kernel ((1,1,1), (1,5,1), (1,1,1)) / 13; the outermost pixels stay as they are."""
    # All images as one line of pixels, which is fastest; pixels mixed across edges are discarded at the end.
    line = source.ravel()
    across = line[:-2] + line[1:-1]
    across += line[2:]
    total = across[: -2 * width] + across[width:-width]
    total += across[2 * width :]
    total += 4 * line[width + 1 : -width - 1]
    total *= 1 / 13
    blurred = np.empty_like(source)
    np.rint(total, out=blurred.ravel()[width + 1 : -width - 1])
    smooth, shape = source.copy(), (*source.shape[:2], -1, width)
    smooth.reshape(shape)[:, :, 1:-1, 1:-1] = blurred.reshape(shape)[:, :, 1:-1, 1:-1]
    return smooth


def _move(images: Bytes, dose: Floats, spans: Spans) -> None:
    """Rotate, shear and translate: each pixel shows the source pixel into which its centre falls."""
    count, channels, height, width = images.shape
    # A grey frame of one pixel represents everything outside; source coordinates count from its corner.
    framed = np.full((count, channels, height + 2, width + 2), GREY, np.uint8)
    framed[:, :, 1:-1, 1:-1] = images
    target = np.ones((3, height, width), np.float32)
    target[0] = np.arange(0.5 - width / 2, width / 2)
    target[1] = np.arange(0.5 - height / 2, height / 2)[:, None]
    x = np.einsum("nk,khw->nhw", dose[:, 3:6], target)
    y = np.einsum("nk,khw->nhw", dose[:, 6:9], target)
    x += width / 2 + 1
    y += height / 2 + 1
    np.floor(x.clip(0, width + 1, out=x), out=x)
    np.floor(y.clip(0, height + 1, out=y), out=y)
    y *= width + 2
    y += x
    # Via int32, because the conversion of floats to int64 is not vectorised.
    moved = gather(torch.from_numpy(framed), torch.from_numpy(y.astype(np.int32).astype(np.int64)))
    np.copyto(images, moved.numpy().reshape(images.shape))


_LUMA: dict[int, Floats] = {1: np.ones(1, np.float32), 3: np.array([0.299, 0.587, 0.114], np.float32)}
_KINDS: tuple[tuple[int, int, Callable[[Bytes, Floats, Spans], None]], ...] = tuple(
    (POOL.index(first), POOL.index(last), treat)
    for first, last, treat in (
        ("equalize", "equalize", _equalize),
        ("solarize", "solarize", _solarize),
        ("posterize", "posterize", _posterize),
        ("autocontrast", "sharpness", _blend),
        ("rotate", "translate_y", _move),
    )
)
