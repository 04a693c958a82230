"""The Python face: load an experiment, run it, open a run, use its model."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfew.build.features import Report
from fedfew.config import schema as configs
from fedfew.config.schema import Config
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.network import Network
from fedfew.runs.folder import CONFIG, MODEL, SUMMARY, RunFolder
from fedfew.runs.model_file import read_model, read_weights
from fedfew.runs.session import Session, start
from fedfew.runtime.record import RoundRecord


@dataclass(frozen=True)
class Experiment:
    """A checked config, ready to run."""

    config: Config

    @staticmethod
    def load(source: str | Path | dict[str, Any], overrides: Mapping[str, Any] | None = None) -> "Experiment":
        """From a preset's name, a TOML file or a table; ``overrides`` are dotted, e.g. {"partition.mu": 0.1}."""
        return Experiment(configs.load(source, overrides))

    def start(self, out: str | Path | None = None, command: str = "", report: Report | None = None) -> Session:
        """A session whose rounds are pulled with ``advance()``.

        ``report(done, total)`` is called while features are computed.
        """
        return start(self.config, out, command, report)

    def rounds(self, out: str | Path | None = None) -> Iterator[RoundRecord]:
        """Run, giving each round's record as it is done."""
        yield from self.start(out).advance()

    def run(self, out: str | Path | None = None) -> "Run":
        """Run to the end."""
        session = self.start(out)
        for _ in session.advance():
            pass
        return Run(session.folder)


@dataclass(frozen=True)
class Run:
    """A run folder, read only."""

    folder: RunFolder

    @staticmethod
    def open(path: str | Path) -> "Run":
        """The run in a folder, finished or not."""
        return Run(RunFolder.open(path))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def config(self) -> Config:
        """The config it was started with; a run of someone's own method can be read without having that method."""
        try:
            return configs.load(self.folder / CONFIG)
        except ConfigErrors as faults:
            if any(fault.code not in ("E111", "E115") for fault in faults.errors):
                raise
            return Config(configs.read(self.folder / CONFIG)[0])

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """One record a round, as in rounds.jsonl."""
        return self.folder.records()

    @property
    def finished(self) -> bool:
        """Whether the last round is done and the model written."""
        return (self.folder / SUMMARY).is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json holds."""
        try:
            content: dict[str, Any] = json.loads((self.folder / SUMMARY).read_text("utf-8"))
        except FileNotFoundError:
            raise FedfewError("E310", str(self.path), "has not finished") from None
        except ValueError as error:
            raise FedfewError("E309", str(self.folder / SUMMARY), f"is damaged ({error})") from None
        return content

    def about_model(self) -> dict[str, Any]:
        """Model, class names, image shape and normalisation, as stored with the weights."""
        return read_weights(self._model_path())[1]

    def model(self) -> nn.Module:
        """The global model after the last round, as a module from normalised images to logits."""
        return self.network().module

    def network(self) -> Network:
        """The same with its normalisation, for uint8 images."""
        return read_model(self._model_path())[0]

    def _model_path(self) -> Path:
        path = self.folder / MODEL
        if not path.is_file():
            raise FedfewError("E310", str(self.path), "has no final model yet")
        return path


def predict(run: Run | str | Path, images: Tensor) -> Tensor:
    """Class probabilities N×C of uint8 images N×C×H×W (or C×H×W for a single one)."""
    run = run if isinstance(run, Run) else Run.open(run)
    shape = tuple(run.about_model()["shape"])
    batch = images[None] if images.ndim == 3 else images
    if batch.dtype != torch.uint8 or tuple(batch.shape[1:]) != shape:
        raise FedfewError(
            "E204", "images", f"are {batch.dtype} of shape {tuple(batch.shape)}, expected uint8 N×{shape}"
        )
    return run.network().probabilities(batch)
