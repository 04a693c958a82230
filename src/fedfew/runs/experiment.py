"""Experiments in Python: load a config, run it, and use the trained model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedfew.config import schema
from fedfew.config.names import own_code
from fedfew.config.tree import Config
from fedfew.core.types import Report
from fedfew.data.samples import Images
from fedfew.runs.run import Run
from fedfew.runs.session import Session, start
from fedfew.runtime.record import RoundRecord


@dataclass(frozen=True)
class Experiment:
    """A checked config, ready to run."""

    config: Config

    @staticmethod
    def load(source: str | Path | dict[str, Any], overrides: Mapping[str, Any] | None = None) -> "Experiment":
        """From a preset's name, a TOML file or a table; ``overrides`` are dotted, e.g. {"partition.mu": 0.1}."""
        return Experiment(schema.load(source, overrides))

    def start(self, out: str | Path | None = None, command: str = "", report: Report | None = None) -> Session:
        """A session whose rounds are pulled with ``advance()``.

        ``report(done, total)`` is called while features are computed.
        """
        return start(self.config, out, command, report)

    def rounds(self, out: str | Path | None = None) -> Iterator[RoundRecord]:
        """Run, yielding each round's record as it is done."""
        yield from self.start(out).advance()

    def run(self, out: str | Path | None = None) -> Run:
        """Run to the end."""
        session = self.start(out)
        for _ in session.advance():
            pass
        return Run(session.folder, tuple(own_code(self.config.document).values()))


def predict(run: Run | str | Path, images: Tensor) -> Tensor:
    """Class probabilities N×C of uint8 images N×C×H×W (or C×H×W for a single one)."""
    run = run if isinstance(run, Run) else Run.open(run)
    return run.network().probabilities(Images.fitting(images, run.about_model()))
