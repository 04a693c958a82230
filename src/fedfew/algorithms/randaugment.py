"""RandAugment (Cubuk et al., 2020) on a whole batch of uint8 images N×C×H×W, with 1 or 3 channels.

Each layer draws one operation per image, sorts the batch by operation and treats each group at once:

- six operations change a pixel by its value alone, so each is a table of 256 entries per image (and channel); one
  gather applies them all;
- colour and sharpness blend the image with a second one, as Pillow's ImageEnhance does;
- five move pixels by an affine map: one gather takes the nearest source pixel, grey (127) from outside.

The results agree with Pillow's ImageOps and ImageEnhance.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import radians

import torch
from torch import Tensor
from torch.nn.functional import pad

GREY = 127
"""What is put where an operation leaves a pixel without a value."""
LEVELS = 10
"""Steps from the mildest form of an operation (level 0) to the strongest (level 9)."""


def rand_augment(
    images: Tensor,
    rng: torch.Generator,
    *,
    layers: int = 2,
    magnitude: int | tuple[int, int] = LEVELS,
    pool: Sequence[str] | None = None,
) -> Tensor:
    """``layers`` operations one after the other on each image, each drawn from the pool and at a random level.

    An operation's level is drawn from 0 … M − 1 with M = ``magnitude``; with a pair (low, high) each image draws its
    own M from low … high. So the default is FixMatch's uniform strength, and FedMatch's variant is ``layers=6,
    magnitude=(2, 5), pool=POOL[1:]``. What has a direction (rotate, brighter or darker) gets it by a coin.
    """
    numbers = torch.tensor([POOL.index(name) for name in (POOL if pool is None else pool)])
    low, high = magnitude if isinstance(magnitude, tuple) else (magnitude, magnitude)
    ceiling = torch.randint(low, high + 1, (len(images), 1), generator=rng)
    drawn = torch.rand((len(images), layers, 3), generator=rng)
    ops = numbers[(drawn[..., 0] * len(numbers)).long().clamp_(max=len(numbers) - 1)]
    level = (drawn[..., 1] * ceiling).floor_().clamp_(max=LEVELS - 1)
    amounts = level / (LEVELS - 1) * torch.where(drawn[..., 2] < 0.5, -1.0, 1.0)
    out = images.contiguous()
    for layer in range(layers):
        out = apply(out, ops[:, layer], amounts[:, layer])
    return out


def apply(images: Tensor, ops: Tensor, amounts: Tensor) -> Tensor:
    """One operation per image, ``POOL[ops[i]]`` at strength ``amounts[i]`` in [−1, 1]; the sign is the direction."""
    order = ops.argsort(stable=True)
    ends = [0, *accumulate(torch.bincount(ops, minlength=len(POOL)).tolist())]
    spans = dict(zip(POOL, pairwise(ends), strict=True))
    order, amounts = order.to(images.device), amounts[order].to(images.device)
    out = images.index_select(0, order)

    tables = [table(out[a:b], amounts[a:b]) for name, table in TABLES.items() for a, b in [spans[name]] if a < b]
    if tables:
        start, stop = spans["autocontrast"][0], spans["contrast"][1]
        out[start:stop] = _look_up(out[start:stop], torch.cat(tables))
    for name, blended in BLENDS.items():
        start, stop = spans[name]
        if start < stop:
            out[start:stop] = blended(out[start:stop], amounts[start:stop])
    height, width = images.shape[2:]
    maps = [affine(height, width, amounts[a:b]) for name, affine in MAPS.items() for a, b in [spans[name]] if a < b]
    if maps:
        start, stop = spans["rotate"][0], spans["translate_y"][1]
        out[start:stop] = _warped(out[start:stop], torch.cat(maps))
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return out.index_select(0, back)


# Operations on values: each gives the table N×C×256 (or N×1×256) of new values.


def _autocontrast(images: Tensor, amounts: Tensor) -> Tensor:
    """The darkest value of each channel becomes 0, the brightest 255."""
    flat = images.flatten(2)
    low, high = flat.amin(2).int()[..., None], flat.amax(2).int()[..., None]
    ramp = _ramp(images).int()
    stretched = ((ramp - low) * 255).clamp_(min=0) // (high - low).clamp_(min=1)
    return torch.where(high > low, stretched.clamp_(max=255), ramp).to(torch.uint8)


def _equalize(images: Tensor, amounts: Tensor) -> Tensor:
    """Each channel's values spread so that all are about equally frequent (integer arithmetic as in Pillow)."""
    count, channels = images.shape[:2]
    rows = torch.arange(count * channels, device=images.device)[:, None]
    keys = (rows * 256 + images.flatten(2).view(count * channels, -1)).flatten()
    histogram = torch.bincount(keys, minlength=count * channels * 256).view(count, channels, 256)
    below = histogram.cumsum(2) - histogram
    brightest = images.flatten(2).amax(2).long()[..., None]
    step = below.gather(2, brightest) // 255
    spread = (below + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, spread.clamp_(max=255), _ramp(images).long()).to(torch.uint8)


def _solarize(images: Tensor, amounts: Tensor) -> Tensor:
    """Values from a threshold on are inverted; the threshold falls from 256 to 0."""
    ramp = _ramp(images).expand(len(images), images.shape[1], 256)
    threshold = (256 * (1 - amounts.abs())).view(-1, 1, 1)
    return torch.where(ramp < threshold, ramp, 255 - ramp)


def _posterize(images: Tensor, amounts: Tensor) -> Tensor:
    """Only the upper bits are kept: from 8 down to 4."""
    dropped = (4 * amounts.abs()).round().to(torch.int32).view(-1, 1, 1)
    kept = (255 - (2**dropped - 1)).to(torch.uint8)
    return (_ramp(images) & kept).expand(len(images), images.shape[1], 256)


def _brightness(images: Tensor, amounts: Tensor) -> Tensor:
    """Blend with black; the factor runs from 0.1 to 1.9, as for contrast, colour and sharpness."""
    table = _blend(_ramp(images).float(), torch.zeros(1, device=images.device), amounts.view(-1, 1, 1))
    return table.expand(len(images), images.shape[1], 256)


def _contrast(images: Tensor, amounts: Tensor) -> Tensor:
    """Blend with the image's mean grey."""
    mean = _grey(images).double().mean((1, 2)).add_(0.5).floor_().float().view(-1, 1, 1)
    return _blend(_ramp(images).float(), mean, amounts.view(-1, 1, 1)).expand(len(images), images.shape[1], 256)


# Operations that blend the image with another: each gives the new images.


def _color(images: Tensor, amounts: Tensor) -> Tensor:
    """Blend with the grey image; a grey image stays as it is."""
    if images.shape[1] == 1:
        return images
    return _blend(images.float(), _grey(images).float()[:, None], amounts.view(-1, 1, 1, 1))


def _sharpness(images: Tensor, amounts: Tensor) -> Tensor:
    """Blend with the image smoothed by ((1,1,1), (1,5,1), (1,1,1))/13; the outermost pixels stay as they are."""
    x = images.float()
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    inner = x[:, :, 1:-1, 1:-1]
    smooth = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smooth.add_(inner, alpha=4).div_(13).add_(0.5).floor_()
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = _blend(inner, smooth, amounts.view(-1, 1, 1, 1))
    return out


# Operations on places: each gives N×6, (a b c d e f): the source of (x, y) is (a·x + b·y + c, d·x + e·y + f).


def _rotate(height: int, width: int, amounts: Tensor) -> Tensor:
    """By up to 30°, counter-clockwise for positive amounts."""
    cos, sin, zero = (radians(30) * amounts).cos(), (radians(30) * amounts).sin(), torch.zeros_like(amounts)
    return torch.stack((cos, -sin, zero, sin, cos, zero), 1)


def _shear_x(height: int, width: int, amounts: Tensor) -> Tensor:
    return _affine(amounts, 1, 0.3)


def _shear_y(height: int, width: int, amounts: Tensor) -> Tensor:
    return _affine(amounts, 3, 0.3)


def _translate_x(height: int, width: int, amounts: Tensor) -> Tensor:
    return _affine(amounts, 2, 0.3 * width)


def _translate_y(height: int, width: int, amounts: Tensor) -> Tensor:
    return _affine(amounts, 5, 0.3 * height)


TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "solarize": _solarize,
    "posterize": _posterize,
    "brightness": _brightness,
    "contrast": _contrast,
}
BLENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"color": _color, "sharpness": _sharpness}
MAPS: dict[str, Callable[[int, int, Tensor], Tensor]] = {
    "rotate": _rotate,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
POOL = ("identity", *TABLES, *BLENDS, *MAPS)
"""The operations; those of one kind stand together, so that a sorted batch has them in one slice."""


def _affine(amounts: Tensor, place: int, scale: float) -> Tensor:
    """The identity map with one coefficient set."""
    coefficients = amounts.new_tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]).repeat(len(amounts), 1)
    coefficients[:, place] = scale * amounts
    return coefficients


def _ramp(images: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.uint8, device=images.device)


def _grey(images: Tensor) -> Tensor:
    """Luma N×H×W with Pillow's integer weights."""
    if images.shape[1] == 1:
        return images[:, 0]
    red, green, blue = images.int().unbind(1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def _blend(image: Tensor, other: Tensor, amounts: Tensor) -> Tensor:
    """other + f·(image − other) with f = 1 + 0.9·amount, cut off as in Pillow."""
    return (other + (1 + 0.9 * amounts) * (image - other)).clamp_(0, 255).to(torch.uint8)


def _look_up(images: Tensor, tables: Tensor) -> Tensor:
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


def _warped(images: Tensor, coefficients: Tensor) -> Tensor:
    """Each target pixel shows the source pixel its centre falls into; a grey frame stands for all that lies outside."""
    count, channels, height, width = images.shape
    right = torch.arange(width, device=images.device) + (0.5 - width / 2)
    down = torch.arange(height, device=images.device) + (0.5 - height / 2)
    a, b, c, d, e, f = coefficients[..., None].unbind(1)
    x = (a * right + (c + width / 2 + 1))[:, None, :] + (b * down)[:, :, None]
    y = (d * right + (f + height / 2 + 1))[:, None, :] + (e * down)[:, :, None]
    x.floor_().clamp_(0, width + 1)
    y.floor_().clamp_(0, height + 1)
    index = y.mul_(width + 2).add_(x).long().view(count, 1, -1).expand(count, channels, height * width)
    return pad(images, (1, 1, 1, 1), value=GREY).flatten(2).gather(2, index).view(images.shape)
