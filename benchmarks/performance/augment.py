"""Images per second of ``strong`` on whole batches against the same augmentation image by image with Pillow.

python benchmarks/performance/augment.py [--json] [--seconds 3]
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from PIL import __version__ as pillow_version
from torch import Tensor

from fedfew.data.samples import Images

GREY = (127, 127, 127)


def affine(image: Image.Image, coefficients: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, fillcolor=GREY)


POOL: list[Callable[[Image.Image, float], Image.Image]] = [
    lambda image, v: image,
    lambda image, v: ImageOps.autocontrast(image),
    lambda image, v: ImageOps.equalize(image),
    lambda image, v: ImageOps.solarize(image, int(256 * (1 - abs(v)))),
    lambda image, v: ImageOps.posterize(image, 8 - round(4 * abs(v))),
    lambda image, v: ImageEnhance.Contrast(image).enhance(1 + 0.9 * v),
    lambda image, v: ImageEnhance.Brightness(image).enhance(1 + 0.9 * v),
    lambda image, v: ImageEnhance.Color(image).enhance(1 + 0.9 * v),
    lambda image, v: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * v),
    lambda image, v: image.rotate(30 * v, fillcolor=GREY),
    lambda image, v: affine(image, (1, 0.3 * v, 0, 0, 1, 0)),
    lambda image, v: affine(image, (1, 0, 0, 0.3 * v, 1, 0)),
    lambda image, v: affine(image, (1, 0, 0.3 * v * image.width, 0, 1, 0)),
    lambda image, v: affine(image, (1, 0, 0, 0, 1, 0.3 * v * image.height)),
]


def strong_pillow(pixels: NDArray[np.uint8], rng: random.Random) -> Tensor:
    """Mirror, shift, two operations and cutout on one image H×W×C, as a dataset's transform does it."""
    image = Image.fromarray(pixels)
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    image = affine(image, (1, 0, rng.randint(-2, 2), 0, 1, rng.randint(-2, 2)))
    for operation in rng.choices(POOL, k=2):
        image = operation(image, rng.randint(0, 9) / 9 * rng.choice((-1, 1)))
    x, y, half = rng.randrange(image.width), rng.randrange(image.height), image.width // 4
    ImageDraw.Draw(image).rectangle((x - half, y - half, x + half - 1, y + half - 1), GREY)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def rates(works: dict[str, Callable[[], object]], images: int, seconds: float) -> dict[str, float]:
    """Median images per second of processor time over blocks of 0.2 s; the works take turns, one thread each."""
    blocks: dict[str, list[float]] = {name: [] for name in works}
    while sum(map(len, blocks.values())) * 0.2 < seconds:
        for name, work in works.items():
            done, start = 0, time.thread_time()
            while time.thread_time() < start + 0.2:
                work()
                done += images
            blocks[name].append(done / (time.thread_time() - start))
    return {name: statistics.median(speeds) for name, speeds in blocks.items()}


def measure(size: int, seconds: float) -> dict[str, float]:
    images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    rng, other = torch.Generator().manual_seed(1), random.Random(1)
    result = rates(
        {
            "batch": lambda: Images(images).strong(rng),
            "pillow": lambda: torch.stack([strong_pillow(array, other) for array in arrays]),
        },
        size,
        seconds,
    )
    return {"size": size, **result, "ratio": result["batch"] / result["pillow"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent per batch size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(size, options.seconds) for size in (64, 512)]
    if options.json:
        versions = {"torch": torch.__version__, "pillow": pillow_version, "machine": platform.processor()}
        print(json.dumps({"rows": rows, "threads": 1, **versions}))
        return
    for row in rows:
        print("batch of {size:3.0f}: {batch:7.0f} images/s, Pillow {pillow:6.0f}, ratio {ratio:.1f}".format(**row))


if __name__ == "__main__":
    main()
