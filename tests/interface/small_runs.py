"""Small runs for reports and pages, made or written by hand, and the page served on a free port."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.runs.own_runs import blank_record

import fedfew
from fedfew.interface.page.access import own_names
from fedfew.interface.page.app import listen, make_server

SMALL = {
    "rounds": 3,
    "clients": 6,
    "participation": 0.5,
    "labels": 20,
    "dataset.unlabeled": 120,
    "dataset.validation": 50,
    "dataset.test": 100,
    "server.epochs": 1,
    "method.views": 2,
    "method.threshold": 0.1,
    "model.width": 4,
    "fleet.kind": "inline",
}


def small_run(out: Path, **chosen: Any) -> Path:
    """A real run; keys are written with __ for the dot."""
    settings = SMALL | {key.replace("__", "."): value for key, value in chosen.items()}
    if settings.get("method.name", "fedmix") != "fedmix":
        settings = {key: value for key, value in settings.items() if key not in ("method.views", "method.threshold")}
    experiment = fedfew.Experiment.load("quick", settings)
    for _ in experiment.start(out, f"fedfew run quick --out {out.name}").advance():
        pass
    return out


def record(number: int, **values: Any) -> dict[str, Any]:
    """A round's record in which nothing happens but what is given."""
    usual = {"accuracy": 0.1, "loss": 2.3, "validation": 0.1, "norm_server": 1.0, "norm_step": 0.5}
    return blank_record(round=number, seconds={"server": 0.1}) | usual | values


def written_run(out: Path, records: list[dict[str, Any]], **config: Any) -> Path:
    """A run folder as a run would have left it after these rounds, without training."""
    out.mkdir(parents=True)
    settings = fedfew.Experiment.load("quick", {k.replace("__", "."): v for k, v in config.items()}).config.document
    from fedfew.config.files import dumps

    (out / "run.toml").write_text(dumps(settings))
    (out / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return out


@contextlib.contextmanager
def serving(root: Path, token: str = "", port: int = 0) -> Iterator[str]:
    """The address of a page about the runs below ``root``."""
    with listen("127.0.0.1", port) as sock:
        server = make_server(root, own_names("127.0.0.1"), token)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
