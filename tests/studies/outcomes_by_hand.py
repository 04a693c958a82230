"""Outcomes of runs that never ran: real configs and curves by hand, so that every expected number can be derived."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.runtime.tiny_run import TINY

from fedfew.config.schema import load
from fedfew.studies.outcomes import Outcome


def by_hand(
    accuracies: Sequence[float], *, seed: int = 0, finished: bool = True, name: str = "", **overrides: Any
) -> Outcome:
    """A run of the tiny config with this curve; keys are written with __ for the dot."""
    chosen = {key.replace("__", "."): value for key, value in overrides.items()}
    rounds = len(accuracies) if finished else len(accuracies) + 5
    config = load(TINY, {"rounds": rounds, "seed": seed, "dataset.seed": seed, **chosen}).document
    records = [
        {"round": t + 1, "accuracy": a, "validation": a, "loss": 1.0, "seconds": {"server": 0.5}, "weights": {}}
        | {"bytes_up": 1000 * (t + 1), "bytes_down": 2500}
        for t, a in enumerate(accuracies)
    ]
    path = Path(name or f"{config['method']['name']}-{seed}")
    return Outcome(path, config, records, finished, {"fingerprint": {"torch": "2.13.0"}, "cores": 2, "python": "3.11"})


def flat(accuracy: float, rounds: int = 3, **more: Any) -> Outcome:
    """A run that has the same accuracy in every round."""
    return by_hand([accuracy] * rounds, **more)
