"""Runs that never ran: real configs and curves by hand, so that every expected number can be derived."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.runs.own_runs import blank_record
from tests.runtime.tiny_run import TINY

from fedfew.config.schema import load
from fedfew.runs.folder import RunFolder
from fedfew.runs.run import Run


def by_hand(
    accuracies: Sequence[float], *, seed: int = 0, finished: bool = True, name: str = "", **overrides: Any
) -> Run:
    """A run of the tiny config with this curve; keys are written with __ for the dot."""
    chosen = {key.replace("__", "."): value for key, value in overrides.items()}
    rounds = len(accuracies) if finished else len(accuracies) + 5
    config = load(TINY, {"rounds": rounds, "seed": seed, "dataset.seed": seed, **chosen})
    records = [
        blank_record(round=t + 1, accuracy=a, validation=a, loss=1.0, seconds={"server": 0.5})
        | {"bytes_up": 1000 * (t + 1), "bytes_down": 2500}
        for t, a in enumerate(accuracies)
    ]
    around = {"fingerprint": {"torch": "2.13.0"}, "cores": 2, "python": "3.11"}
    return Run(RunFolder(Path(name or f"{config.method_name}-{seed}"))).with_(
        document=config.document, records=records, finished=finished, summary={}, environment=around
    )


def flat(accuracy: float, rounds: int = 3, **more: Any) -> Run:
    """A run that has the same accuracy in every round."""
    return by_hand([accuracy] * rounds, **more)
