"""fedfew check as its own process on the zoo, 500 damaged images and the largest that are read; measures memory."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.digit_folders import write_digits
from tests.data.image_zoo import SKIPPED, mutants, saved, webp_claiming, zoo

LIMIT_MB = 512
COMMAND = """
import atexit, sys
from fedfew.interface.cli import main
def tell():
    lines = open("/proc/self/status").read().splitlines()
    sys.stderr.write(next(line for line in lines if line.startswith("VmHWM")))
atexit.register(tell)
main()
"""


def largest() -> Iterator[tuple[str, bytes]]:
    """Images at the caps, of the kinds that need the most memory."""
    yield "alpha.png", saved(Image.new("RGBA", (5_000, 5_000), (9, 9, 9, 200)), "PNG", compress_level=1)
    yield "deep.png", saved(Image.fromarray(np.full((5_000, 5_000), 900, np.uint16)), "PNG", compress_level=1)
    yield "alpha.webp", saved(Image.new("RGBA", (3_000, 4_000)), "WEBP", lossless=True, method=0, quality=0)
    yield "floats.tif", saved(Image.fromarray(np.full((3_000, 5_000), 0.5, np.float32)), "TIFF", compression="tiff_lzw")
    yield "print.jpg", saved(Image.new("CMYK", (7_071, 7_071)), "JPEG")
    yield "progressive.jpg", saved(Image.new("CMYK", (4_000, 5_000)), "JPEG", progressive=True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_nothing_ends_check_or_takes_512_mb(tmp_path: Path) -> None:
    site = write_digits(tmp_path / "images", server=20, clients=20, test=20) / "clients" / "odd"
    site.mkdir()
    fates = {name: fate for name, _, fate in zoo()} | {"canvas.webp": SKIPPED, "beyond.jpg": SKIPPED}
    for name, content in [*((name, content) for name, content, _ in zoo()), *largest()]:
        (site / name).write_bytes(content)
    (site / "canvas.webp").write_bytes(webp_claiming(3_000)[:-3] + b"\xff\xff\x00")
    (site / "beyond.jpg").write_bytes(saved(Image.new("L", (4_500, 4_500)), "JPEG", progressive=True))
    damaged = {f"damaged-{number:04d}": content for number, content in enumerate(mutants(500))}
    for name, content in damaged.items():
        (site / name).write_bytes(content)

    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "check", str(tmp_path / "images"), "--json"],
        env=os.environ | {"FEDFEW_DATA": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    skipped = {Path(entry["file"]).name: entry["reason"] for entry in found["unreadable"]}
    assert all(skipped.values())
    assert {name for name in skipped if name not in damaged} == {n for n, fate in fates.items() if fate == SKIPPED}
    assert "the limit is 100" in skipped["bomb-scans.jpg"]
    assert "the limit is 20 million" in skipped["beyond.jpg"]
    assert 100 < len(skipped.keys() & damaged.keys()) < 450
    assert found["sites"]["odd"] == len(list(site.iterdir())) - len(skipped)
    peak = int(done.stderr.splitlines()[-1].split()[1]) / 1024
    assert 100 < peak < LIMIT_MB
