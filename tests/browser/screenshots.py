"""The picture in the documentation, taken of real runs: ``make screenshots``."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from tests.browser.devtools import browser
from tests.interface.fedfew_command import serving

import fedfew
from fedfew.interface.page.library import key_of

PICTURE = Path("docs") / "images" / "page.png"
METHODS = ("server-only", "pooled", "fedmoments")
OURS = METHODS[-1]


def take() -> None:
    """The page of the demo on photographs: our own method beside its bounds."""
    with TemporaryDirectory() as folder, browser() as tab:
        root = Path(folder) / "runs"
        for name in METHODS:
            chosen = {"method.name": name, "fleet.kind": "inline"}
            command = f"fedfew run demo-photos --set method.name={name} --out runs/{name}"
            for _ in fedfew.Experiment.load("demo-photos", chosen).start(root / name, command).advance():
                pass
        with serving(root) as server:
            tab.open(f"{server}/run/{key_of(root / OURS, root)}", 1200, 1500)
            tab.wait("document.querySelectorAll('figure svg.chart').length > 2")
            time.sleep(2)  # fonts and the last redraw
            tab.screenshot(PICTURE)
    # with a palette the picture looks the same and takes a third of the space
    Image.open(PICTURE).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    take()
