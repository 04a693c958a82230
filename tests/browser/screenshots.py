"""The pictures in the documentation, taken of real runs: ``make screenshots``."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.browser.devtools import Tab, browser
from tests.interface.page_server import serving

import fedfew
from fedfew.interface.page.library import key_of
from fedfew.interface.report import write_report

IMAGES = Path("docs") / "images"
COMMON: dict[str, Any] = {"rounds": 25, "fleet.kind": "inline"}
RUNS: dict[str, dict[str, Any]] = {
    "server-only": {"method.name": "server-only"},
    "all-labels": {"method.name": "all-labels"},
    "fedfew": {"method.name": "fedfew", "availability.dropout": 0.1, "availability.kind": "zipf"},
}


def take() -> None:
    """Three runs; the last is caught a few rounds before its end, and reported after it."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, browser() as tab:
        root = Path(folder) / "runs"
        for name, chosen in RUNS.items():
            session = fedfew.Experiment.load("demo", COMMON | chosen).start(
                root / name, f"fedfew run demo --out runs/{name}"
            )
            for record in session.advance():
                if name == "fedfew" and record["round"] == 20:
                    take_pages(tab, root)
        tab.open(f"file://{write_report(root / 'fedfew')}", 1200, 1500)
        tab.screenshot(IMAGES / "report.png")


def take_pages(tab: Tab, root: Path) -> None:
    """The page of the last run as a desk and as a phone show it."""
    with serving(root) as server:
        for width, height, name in ((1200, 1500, "page.png"), (390, 1180, "page-phone.png")):
            tab.open(f"{server}/run/{key_of(root / 'fedfew', root)}", width, height)
            tab.wait("document.querySelectorAll('.plot .main-svg').length > 2")
            time.sleep(2)  # fonts and the last redraw
            tab.screenshot(IMAGES / name)


if __name__ == "__main__":
    take()
