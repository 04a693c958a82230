"""Real digits written out as folders of PNGs: server/<class>/, clients/<site>/, test/<class>/."""

from pathlib import Path

from PIL import Image
from torch import Tensor

from fedfew.data.included import mini_mnist


def write_digits(root: Path, server: int = 60, clients: int = 200, test: int = 80, sites: int = 4) -> Path:
    """A folder of mini-mnist's digits; site k holds digits that are near to 10·k/sites, so sites differ."""
    digits = mini_mnist()
    names = [f"hospital-{k}" for k in range(sites)]
    for i in range(server + clients):
        image, digit = digits.train.samples.data[i, 0], int(digits.train.labels[i])
        place = f"server/digit {digit}" if i < server else f"clients/{names[digit * sites // 10]}"
        put(root / place / f"{i:05d}.png", image)
    for i in range(test):
        put(root / f"test/digit {int(digits.test.labels[i])}" / f"{i:05d}.png", digits.test.samples.data[i, 0])
    return root


def put(path: Path, pixels: Tensor) -> None:
    """One grey PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).save(path)
