"""A finished run on a folder of digits, trained once for all tests that use a trained model."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.data.digit_folders import write_digits

from fedfew.runs.session import Experiment

CONFIG: dict[str, Any] = {
    "rounds": 5,
    "participation": 0.5,
    "dataset": {"name": "folder", "size": 28, "channels": 1, "flips": False, "validation": 100},
    "model": {"name": "cnn", "width": 8},
    "method": {"name": "fedmix", "threshold": 0.8, "lambda_anchor": 0.001},
    "server": {"epochs": 10, "lr": 0.05, "momentum": 0.9, "batch": 32},
    "client": {"lr": 0.02},
    "fleet": {"kind": "inline"},
}


@functools.cache
def digits_run() -> tuple[Path, Path]:
    """The folder of images, and the folder of a run on it."""
    place = Path(tempfile.mkdtemp(prefix="fedfew-digits-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    images = write_digits(place / "images", server=150, clients=240, test=400)
    before = os.environ.get("FEDFEW_DATA")
    os.environ["FEDFEW_DATA"] = str(place / "cache")
    try:
        config = CONFIG | {"dataset": CONFIG["dataset"] | {"path": str(images)}}
        Experiment.load(config).run(place / "run")
    finally:
        if before is None:
            del os.environ["FEDFEW_DATA"]
        else:
            os.environ["FEDFEW_DATA"] = before
    return images, place / "run"
