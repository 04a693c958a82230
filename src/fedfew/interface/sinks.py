"""Exports a run's rounds to TensorBoard and MLflow, from rounds.jsonl, each round once."""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.extras import missing
from fedfew.runs.folder import CONFIG
from fedfew.runs.run import Run
from fedfew.runs.summary import scalars


def times(run: Run) -> Iterator[float]:
    """When each round was done: the start of the run plus the seconds of its rounds."""
    try:
        now = datetime.fromisoformat(run.environment["started"]).timestamp()
    except (KeyError, TypeError, ValueError):
        now = (run.path / CONFIG).stat().st_mtime
    for record in run.records:
        now += sum(record["seconds"].values())
        yield now


def to_tensorboard(run: Run, out: Path) -> int:
    """Write the rounds that the event files in OUT/NAME do not have yet, and return how many."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise missing("tensorboard", "fedfew[track]", "--to") from None
    folder = out / run.path.resolve().name
    known = max(
        (event.step for path in folder.glob("events.*") for event in LegacyEventFileLoader(str(path)).Load()), default=0
    )
    fresh = [(when, r) for when, r in zip(times(run), run.records, strict=True) if r["round"] > known]
    if not fresh:
        return 0
    writer = EventFileWriter(str(folder))
    for when, record in fresh:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record).items()]
        writer.add_event(Event(wall_time=when, step=record["round"], summary=Summary(value=values)))
    writer.close()
    return len(fresh)


def to_mlflow(run: Run, out: str) -> int:
    """Log the rounds that MLflow does not have yet; OUT is a folder or the address of a tracking server."""
    address = out if "://" in out else Path(out).absolute().as_uri()
    if address.startswith("file:"):
        # without a database (not part of mlflow-skinny) a folder is the only local store, and must be requested
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise missing("mlflow", "fedfew[track]", "--to") from None
    try:
        client = MlflowClient(tracking_uri=address)
        logged, known = _mlflow_run(client, run)
        tags = [RunTag("fedfew.path", str(run.path)), RunTag("fedfew.finished", str(run.finished))]
        parameters = [] if known else [Param(key, _text(value)[:500]) for key, value in run.flat.items()]
        metrics = [
            Metric(name, value, int(1000 * when), record["round"])
            for when, record in zip(times(run), run.records, strict=True)
            if record["round"] > known
            for name, value in scalars(record).items()
        ]
        for first in range(0, max(len(metrics), len(parameters), 1), 100):  # a batch has at most 100 parameters
            part = slice(first, first + 100)
            client.log_batch(logged, metrics=metrics[part], params=parameters[part], tags=tags if not first else [])
        if run.finished:
            client.set_terminated(logged)
    except MlflowException as error:
        raise FedfewError("E305", out, f"MLflow refuses: {str(error).splitlines()[0]}") from None
    return len({metric.step for metric in metrics})


def _mlflow_run(client: Any, run: Run) -> tuple[str, int]:
    """The MLflow run of this run (created if there is none), and the last round it has."""
    name = run.dataset
    experiment = client.get_experiment_by_name(name)
    identifier = experiment.experiment_id if experiment else client.create_experiment(name)
    mark = f"{run.path.resolve().name} {run.environment.get('started', '')}"
    for found in client.search_runs([identifier], max_results=10_000):
        if found.data.tags.get("fedfew.run") == mark:
            history = client.get_metric_history(found.info.run_id, "accuracy")
            return found.info.run_id, max((metric.step for metric in history), default=0)
    made = client.create_run(identifier, run_name=run.path.resolve().name, tags={"fedfew.run": mark})
    return made.info.run_id, 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
