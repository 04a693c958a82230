"""Exports a run's rounds to TensorBoard, MLflow and Weights & Biases, from rounds.jsonl, each round once."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.extras import missing
from fedfew.core.storage import write_atomically
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


def to_tensorboard(run: Run, out: str) -> int:
    """Write the rounds that the event files in OUT/NAME do not have yet, and return how many."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise missing("tensorboard", "fedfew[track]", "--to") from None
    folder = Path(out) / run.path.resolve().name
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
    mark = _identity(run)
    for logged in client.search_runs([identifier], max_results=10_000):
        if logged.data.tags.get("fedfew.run") == mark:
            history = client.get_metric_history(logged.info.run_id, "accuracy")
            return logged.info.run_id, max((metric.step for metric in history), default=0)
    made = client.create_run(identifier, run_name=run.path.resolve().name, tags={"fedfew.run": mark})
    return made.info.run_id, 0


def to_wandb(run: Run, out: str) -> int:
    """Log the rounds that W&B does not have yet. OUT is a folder; nothing is sent unless WANDB_MODE is "online"."""
    try:
        import wandb
    except ImportError:
        raise missing("wandb", "fedfew[track]", "--to") from None
    identifier = hashlib.sha256(_identity(run).encode()).hexdigest()[:16]
    folder = Path(out) / "wandb"
    mark = folder / f"fedfew-{identifier}.json"  # neither an account nor files tell which rounds they have
    known = json.loads(mark.read_text("utf-8"))["round"] if mark.is_file() else 0
    rounds = list(zip(times(run), run.records, strict=True))
    if not (fresh := [part for part in rounds if part[1]["round"] > known]):
        return 0
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    folder.mkdir(parents=True, exist_ok=True)
    if mode == "offline":  # of two folders with one name W&B would upload the second only, so it has every round
        for old in folder.glob(f"offline-run-*-{identifier}"):
            shutil.rmtree(old)
    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True
    )
    try:
        logged = wandb.init(
            project=run.dataset, name=run.path.resolve().name, id=identifier, dir=out, mode=mode, config=run.flat,
            resume=None if mode == "offline" else "allow", settings=settings,
        )  # fmt: skip
        for when, record in rounds if mode == "offline" else fresh:
            logged.log(scalars(record) | {"_timestamp": when}, step=record["round"])
        logged.finish()
    except wandb.Error as error:
        raise FedfewError("E305", out, f"W&B refuses: {str(error).splitlines()[0]}") from None
    write_atomically(mark, json.dumps({"round": len(rounds)}).encode())
    return len(fresh)


def _identity(run: Run) -> str:
    """What marks a run among all that were ever tracked."""
    return f"{run.path.resolve().name} {run.environment.get('started', '')}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


SINKS: dict[str, tuple[Callable[[Run, str], int], str]] = {
    "tensorboard": (to_tensorboard, "tensorboard --logdir {}"),
    "mlflow": (to_mlflow, "mlflow ui --backend-store-uri {}"),
    "wandb": (to_wandb, "wandb sync {}/wandb/offline-run-*"),
}
"""Where rounds can be sent: what sends them, and the command that shows or uploads them."""
