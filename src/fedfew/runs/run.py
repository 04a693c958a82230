"""A run in Python: open a run folder, read its parts, use its model. Reading needs no torch."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from fedfew.config.files import flat
from fedfew.core.errors import FedfewError
from fedfew.core.text import percent
from fedfew.data import noun_of
from fedfew.runs import folder as stored
from fedfew.runs import reading
from fedfew.runs.alarms import Alarm, alarms
from fedfew.runs.folder import RunFolder
from fedfew.runs.summary import BY_EVALUATION, HEADLINE, best_round, client_rows, scalars, totals
from fedfew.runtime.record import RoundRecord, pace

if TYPE_CHECKING:  # a run is read without torch, unless its model or its config with defaults is needed
    from pandas import DataFrame
    from torch import nn

    from fedfew.config.tree import Config
    from fedfew.core.network import Network
    from fedfew.runs.statistics import Judged

BOUNDS = ("server-only", "all-labels", "pooled")
NAMES = "labels-names"
"""The baseline that knows the classes' names, which says what they add to the labels."""
REFERENCES = (*BOUNDS, NAMES)
TITLES = {"all-labels": "FedAvg with true labels", NAMES: "labels + names"}
State = Literal["starting", "warm-up", "running", "finished", "stopped"]


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, read only: every part is read on first use, and then cached.

    So a run in progress is seen as it was at that moment; ``again()`` reads it again.
    """

    folder: RunFolder
    allow_code: tuple[str, ...] = ()
    """Code outside fedfew that the folder may name: ``package.module:Name``, or a module for what is defined in it."""

    @staticmethod
    def open(path: str | Path, *, allow_code: Collection[str] = (), **parts: Any) -> "Run":
        """The run in a folder, finished or not; ``parts`` are given and not read."""
        return Run(RunFolder.open(path), tuple(allow_code)).with_(**parts)

    def with_(self, **parts: Any) -> "Run":
        """The same run with some parts given; the others are read on first use."""
        run = Run(self.folder, self.allow_code)
        vars(run).update(parts)
        return run

    def again(self, **parts: Any) -> "Run":
        """The run as it is now; known rounds are not read again."""
        known = {"_before": self._rounds} if "_rounds" in vars(self) else {}
        return self.with_(name=self.name, **known, **parts)

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def name(self) -> str:
        """Its name in lists: the folder's name, or its path below the folder that was searched."""
        return self.path.resolve().name

    @cached_property
    def document(self) -> dict[str, Any]:
        """run.toml as it is."""
        return reading.read_config(self.folder / stored.CONFIG)

    @cached_property
    def config(self) -> "Config":
        """Its config, checked and built again."""
        from fedfew.config.schema import check

        return check(self.document, str(self.folder / stored.CONFIG), self.allow_code)

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The config as dotted keys."""
        return flat(self.document)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, machine and command."""
        return reading.read_json(self.folder / stored.ENVIRONMENT, reading.Environment) or {}

    @cached_property
    def classes(self) -> dict[str, Any]:
        """Class names, and how many images of each the server and (in a simulation) the clients hold."""
        return reading.read_json(self.folder / stored.CLASSES, reading.Classes) or {}

    @cached_property
    def _settings(self) -> reading.Document:
        """What the config says, as far as a list of runs needs it."""
        return reading.Document.model_validate(self.document)

    @property
    def method(self) -> str:
        return self._settings.method.name

    @property
    def client_count(self) -> int:
        return self._settings.clients

    @property
    def labels(self) -> int:
        """Labels at the server."""
        return self._settings.labels

    @property
    def aggregator(self) -> str:
        return self._settings.aggregator.name

    @property
    def dataset(self) -> str:
        return self._settings.dataset.name

    @property
    def noun(self) -> str:
        """What its samples are called: images, rows or texts."""
        return noun_of(self.dataset)

    @property
    def seed(self) -> int:
        return self._settings.seed

    @property
    def seeds(self) -> tuple[int, int]:
        """The seeds of training and of the split; runs that share both are compared in pairs."""
        return self.seed, self._settings.dataset.seed

    @property
    def planned(self) -> int:
        """How many rounds are planned."""
        return self._settings.rounds

    @property
    def title(self) -> str:
        """The method and, if clients take part, the aggregation rule."""
        if self.method in REFERENCES:
            return TITLES.get(self.method, self.method)
        return f"{self.method} + {self.aggregator}"

    @cached_property
    def deviations(self) -> dict[str, tuple[Any, Any]]:
        """Settings of its method and aggregator that are not as published, each with the published value."""
        from fedfew.config.tables import deviations

        return {} if self.method in REFERENCES else deviations(self.flat)

    @property
    def unpublished(self) -> str:
        """The same as text: ``threshold 0.8 (published 0.95)``; empty if there are none."""
        short = {key.removeprefix("method."): values for key, values in self.deviations.items()}
        return ", ".join(f"{key} {own} (published {published})" for key, (own, published) in short.items())

    @property
    def tuned(self) -> str:
        """How its settings were searched for, such as ``best of 20 trials by validation``; empty if they were not."""
        return str(self.environment.get("tuned", ""))

    # its results

    @cached_property
    def _rounds(self) -> reading.Rounds:
        return reading.read_rounds(self.folder / stored.ROUNDS, vars(self).get("_before"))

    @cached_property
    def records(self) -> list[RoundRecord]:
        """One record per round, as in rounds.jsonl."""
        return self._rounds.records

    @property
    def rounds(self) -> list[RoundRecord]:
        """One record per round, as in rounds.jsonl."""
        return self.records

    @cached_property
    def finished(self) -> bool:
        """Whether the last round is done and the model written."""
        return (self.folder / stored.SUMMARY).is_file()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json; E310 if the run has not finished."""
        summary = reading.read_json(self.folder / stored.SUMMARY, reading.Summary)
        if summary is None:
            raise FedfewError("E310", str(self.path), "has not finished")
        return summary

    @property
    def final(self) -> dict[str, Any]:
        """The summary; empty while there is none."""
        return self.summary if self.finished else {}

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Rounds, accuracies, pseudo-labels, bytes and seconds so far; a finished run's are in its summary."""
        return self.final if "accuracy" in self.final else totals(self.records)

    @property
    def done(self) -> int:
        """How many rounds are done."""
        return int(self.totals["rounds"])

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """Confusion matrix, measures by class, calibration and sites after the last round; empty if unknown."""
        return (reading.read_json(self.folder / stored.EVALUATION, reading.Measures) or {}) if self.finished else {}

    @cached_property
    def judged(self) -> "Judged | None":
        """The test images' classes and the final model's probabilities for them, if they were saved."""
        from fedfew.runs.statistics import read_predictions

        return read_predictions(self.folder / stored.PREDICTIONS) if self.finished else None

    @property
    def accuracies(self) -> dict[str, float | None]:
        """Accuracy after the last round, mean of the last ten, and at the round with the best validation accuracy."""
        accuracies: dict[str, float | None] = self.totals["accuracy"]
        return accuracies

    def accuracy(self, which: str = HEADLINE) -> float | None:
        """last (the headline), mean_last_10 or best_by_validation; or balanced_accuracy, auroc, ece."""
        measures = self.evaluation if which in BY_EVALUATION else self.accuracies
        return measures.get(which)

    def curve(self) -> list[float]:
        """Test accuracy by round, NaN where there is none."""
        return [math.nan if r["accuracy"] is None else float(r["accuracy"]) for r in self.records]

    @property
    def best_round(self) -> int | None:
        """The round with the best validation accuracy."""
        best = best_round(self.records)
        return best["round"] if best else None

    def traffic(self, key: Literal["bytes_up", "bytes_down"]) -> float:
        """Bytes per round, the mean over the rounds."""
        return float(self.totals[key]) / max(self.done, 1)

    @property
    def seconds(self) -> float:
        """Duration of the rounds so far."""
        return float(self.totals["seconds"])

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds for the remaining rounds, from the last ten."""
        if self.state != "running" or not self.records:
            return None
        last = [pace(r) for r in self.records[-10:]]
        return sum(last) / len(last) * (self.planned - len(self.records))

    @cached_property
    def warmup(self) -> reading.Warmed | None:
        """Progress of the training before the first round, as last saved; None without one, and after it."""
        return None if self.finished or self.records else reading.read_warmup(self.folder.checkpoints / stored.WARMUP)

    @cached_property
    def held(self) -> bool | None:
        """Whether a process is working on it; None if the system does not say."""
        return stored.is_held(self.path, stored.held_locks())

    @cached_property
    def state(self) -> State:
        """Finished, or whether a process is working on it."""
        if self.finished:
            return "finished"
        held = self.held
        if held is None:  # judge by the time since the last round
            usual = median(map(pace, self.records)) if self.records else 60.0
            names = stored.ROUNDS, stored.PARTITION, f"{stored.CHECKPOINTS}/{stored.WARMUP}"
            files = [self.folder / name for name in names]
            held = time.time() - max((p.stat().st_mtime for p in files if p.exists()), default=0.0) < 30 + 5 * usual
        if not held:
            return "stopped"
        if self.records or self.warmup is None:
            return "running" if self.records else "starting"
        return "warm-up" if self.warmup.done < self.warmup.total else "running"

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Alarms that a person should look at."""
        return alarms(self.records, self.classes.get("server", ()))

    @cached_property
    def fault(self) -> FedfewError | None:
        """Why it cannot be shown: the first damaged file."""
        try:
            _ = self.document, self.environment, self.classes, self.final, self.records
        except FedfewError as fault:
            return fault
        return None

    def about_model(self) -> dict[str, Any]:
        """Model, class names, image shape and normalisation, as stored with the weights."""
        from fedfew.runs.model_file import read_weights

        return read_weights(self.model_path())[1]

    def model(self) -> "nn.Module":
        """The global model after the last round, as a module from normalised images to logits."""
        return self.network().module

    def network(self) -> "Network":
        """The model with its normalisation, for uint8 images."""
        from fedfew.runs.model_file import read_model

        return read_model(self.model_path(), self.allow_code)[0]

    @cached_property
    def weights(self) -> str:
        """The model file in use: the one after the last round, unless another is chosen."""
        return stored.MODEL

    def using(self, model: str) -> "Run":
        """The same run with the model after the ``last`` round, or of the one with the ``best`` validation accuracy."""
        if model not in ("last", "best"):
            raise FedfewError("E103", "model", f"{model!r} is unknown", "Use last or best")
        return self.with_(weights=stored.BEST if model == "best" else stored.MODEL)

    def model_path(self) -> Path:
        path = self.folder / self.weights
        if path.is_file() and self.finished:
            return path
        if self.finished and self.weights == stored.BEST:
            problem = "has no best model: there were no validation images to choose by"
            remedy = "Set dataset.validation, or use the last one: --model last"
            raise FedfewError("E310", str(self.path), problem, remedy)
        raise FedfewError("E310", str(self.path), "has no final model yet")

    def to_frame(self) -> "DataFrame":
        """The numbers of all rounds as a pandas DataFrame, one row per round."""
        from fedfew.core.extras import data_frame

        rows = [{"round": record["round"]} | scalars(record) for record in self.records]
        return data_frame(rows, "to_frame", "round")

    @property
    def clients(self) -> "DataFrame":
        """What is recorded of every client that was asked, as a pandas DataFrame: one row per round and client.

        Columns: the aggregator's weight, the length of its step (norm) and its cosine with the server's, every number
        that its training reports, and the code of what was wrong with its update.
        """
        from fedfew.core.extras import data_frame

        rows = [{"round": record["round"]} | row for record in self.records for row in client_rows(record)]
        return data_frame(rows, "Run.clients", "round", "client")

    def _repr_html_(self) -> str:
        """The run as shown in a notebook."""
        rows = {"run": self.path, "state": self.state, "rounds": f"{self.done} of {self.planned}"}
        rows |= {f"accuracy, {key}": percent(value) for key, value in self.accuracies.items()}
        cells = "".join(f"<tr><th>{escape(key)}</th><td>{escape(str(v))}</td></tr>" for key, v in rows.items())
        return f"<table><caption>{escape(self.title)} on {escape(self.dataset)}</caption>{cells}</table>"
