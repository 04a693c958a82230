"""The pictures in the documentation, taken of real runs: ``make screenshots``."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from tests.browser.devtools import Tab, browser
from tests.interface.small_runs import serving

import fedfew
from fedfew.interface.page.library import key_of
from fedfew.interface.report import write_report

IMAGES = Path("docs") / "images"
METHODS = ("server-only", "pooled", "fedmoments")
OURS = METHODS[-1]


def take() -> None:
    """The demo on photographs: our own method beside its bounds."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, browser() as tab:
        root = Path(folder) / "runs"
        for name in METHODS:
            chosen = {"method.name": name, "fleet.kind": "inline"}
            command = f"fedfew run demo-photos --set method.name={name} --out runs/{name}"
            for _ in fedfew.Experiment.load("demo-photos", chosen).start(root / name, command).advance():
                pass
        take_pages(tab, root)
        tab.open(f"file://{write_report(root / OURS)}", 1200, 1500)
        tab.screenshot(IMAGES / "report.png")
    for path in IMAGES.glob("*.png"):
        few_colours(path)


def take_pages(tab: Tab, root: Path) -> None:
    """The page of our own run as a desk and as a phone show it."""
    with serving(root) as server:
        for width, height, name in ((1200, 1500, "page.png"), (390, 1180, "page-phone.png")):
            tab.open(f"{server}/run/{key_of(root / OURS, root)}", width, height)
            tab.wait("document.querySelectorAll('figure svg.chart').length > 2")
            time.sleep(2)  # fonts and the last redraw
            tab.screenshot(IMAGES / name)


def few_colours(path: Path) -> None:
    """A page has few colours: with a palette the picture looks the same and takes a third of the space."""
    Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    take()
