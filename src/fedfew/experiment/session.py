"""A run in progress: started in a new folder or gone on with in an old one, advanced round by round, always resumable."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from fedfew.core.errors import FedfewError
from fedfew.core.types import ServerState
from fedfew.data import Federation
from fedfew.experiment import toml
from fedfew.experiment.build import Parts, assemble, fleet_of
from fedfew.experiment.checkpoints import Checkpoint, Checkpoints, Memory
from fedfew.experiment.config import Config, check
from fedfew.experiment.environment import environment, fingerprint
from fedfew.experiment.folder import (
    CLASSES,
    CONFIG,
    ENVIRONMENT,
    MODEL,
    PARTITION,
    ROUNDS,
    SUMMARY,
    RunFolder,
    new_folder,
    put_in_place,
    stage,
)
from fedfew.experiment.storage import digest, file_digest, locked, write_atomically
from fedfew.experiment.summary import summarise
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds

Warn = Callable[[FedfewError], None]


@dataclass(eq=False)
class Session:
    """One process's work on a run."""

    folder: RunFolder
    parts: Parts
    state: ServerState
    memory: Memory
    facts: dict[str, Any]

    @property
    def rounds(self) -> int:
        """How many rounds the run has in all."""
        return int(self.parts.config["rounds"])

    def advance(self) -> Iterator[RoundRecord]:
        """The rounds that are left; each is on the disk when it is yielded. At the end the model and the summary are."""
        store = Checkpoints(self.folder.checkpoints)
        with locked(self.folder.path), one_thread():
            if self.state.round < self.rounds:
                with contextlib.closing(fleet_of(self.parts)) as fleet:
                    fleet.remember(self.memory)
                    parts = self.parts
                    for state, record in run_rounds(
                        parts.clients, parts.algorithm, parts.server, fleet, self.state, self.rounds,
                        parts.config["max_skipped"],
                    ):  # fmt: skip
                        self._commit(store, state, fleet.memory(), record)
                        yield record
            self._finish()

    def _commit(self, store: Checkpoints, state: ServerState, memory: Memory, record: RoundRecord) -> None:
        start = perf_counter()
        files = store.write_state(state, memory)
        record["seconds"]["checkpoint"] = round(perf_counter() - start, 4)
        self.folder.append(record)
        store.commit(state.round, files, self.facts | {"rounds": self.folder.rounds_seal()})
        self.state, self.memory = state, memory

    def _finish(self) -> None:
        model = model_file(self.parts, self.state)
        if file_digest(self.folder / MODEL) != digest(model):
            write_atomically(self.folder / MODEL, model)
        summary = summarise(self.folder.records(), self.parts.config, digest(model))
        write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False).encode())


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Equal bits need an equal number of threads: one, in every process; the caller's setting comes back after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def start(config: Config, out: str | Path | None = None, command: str = "") -> Session:
    """Build everything first, so that a fault leaves nothing behind; then put the folder in its place whole."""
    path = new_folder(out, f"{config['dataset.name'].replace(':', '.')}-{config['method.name']}")
    with one_thread():
        parts = assemble(config)
    state = parts.algorithm.start(parts.network.snapshot())
    around = environment(command)
    facts = {"document": config.document, "environment": around, "partition": parts.federation.partition.hash}
    staged = stage(path)
    try:
        folder = RunFolder(staged)
        write_static(folder, parts, facts)
        for place in (folder / ROUNDS, folder.checkpoints / ROUNDS):
            write_atomically(place, b"")
        store = Checkpoints(folder.checkpoints)
        store.commit(0, store.write_state(state, {}), facts | {"rounds": folder.rounds_seal()})
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    put_in_place(staged, path)
    return Session(RunFolder(path), parts, state, {}, facts)


def static_files(parts: Parts, facts: dict[str, Any]) -> dict[str, bytes]:
    """The files that stay the same for the whole run; the manifest holds all that is needed to write them again."""
    return {
        CONFIG: toml.dumps(facts["document"]).encode(),
        ENVIRONMENT: json.dumps(facts["environment"], indent=1, ensure_ascii=False).encode(),
        PARTITION: parts.federation.partition.to_bytes(),
        CLASSES: json.dumps(class_counts(parts.federation), ensure_ascii=False).encode(),
    }


def class_counts(federation: Federation) -> dict[str, Any]:
    """The classes' names and how many images of each the server and every client hold, for charts without the dataset.

    The clients' counts are known in a simulation only; where any image's class is not known they are left out.
    """
    width, truth = len(federation.classes), federation.truth.numpy()
    known = len(truth) == len(federation.partition.order) and bool((truth >= 0).all())
    return {
        "classes": list(federation.classes),
        "server": torch.bincount(federation.server.labels, minlength=width).tolist(),
        "clients": federation.partition.histogram(truth, width).tolist() if known else [],
    }


def write_static(folder: RunFolder, parts: Parts, facts: dict[str, Any]) -> None:
    """Config, environment and partition."""
    for name, content in static_files(parts, facts).items():
        write_atomically(folder / name, content)


def reopen(
    path: str | Path, warn: Warn, overrides: dict[str, Any] | None = None, *, anyway: bool = False
) -> Session:
    """Go on with a run from its newest whole checkpoint.

    Only the fleet may be changed by ``overrides``: it has no influence on the result.
    """
    folder = RunFolder.open(path)
    wrong = [key for key in overrides or {} if not key.startswith("fleet.")]
    if wrong:
        raise FedfewError(
            "E307", str(path), f"{', '.join(wrong)} cannot change in a run that has started", "Start a new run for that"
        )
    found = Checkpoints(folder.checkpoints).newest(lambda facts: folder.restore_rounds(facts["rounds"]), warn)
    facts = {key: value for key, value in found.facts.items() if key != "rounds"}
    _compare_environment(str(path), facts["environment"]["fingerprint"], warn, anyway)
    document = {**facts["document"], "fleet": dict(facts["document"]["fleet"])}
    for key, value in (overrides or {}).items():
        document["fleet"][key.partition(".")[2]] = value
    with one_thread():
        parts = assemble(check(document, str(folder / CONFIG)))
    _check_data(folder, parts, found, warn)
    return Session(folder, parts, found.state, found.memory, facts)


def _compare_environment(place: str, before: dict[str, Any], warn: Warn, anyway: bool) -> None:
    now = fingerprint()
    other = [f"{key} was {before.get(key)}, is {now[key]}" for key in now if before.get(key) != now[key]]
    if other:
        fault = FedfewError("E308", place, "; ".join(other))
        if not anyway:
            raise fault
        warn(fault)


def _check_data(folder: RunFolder, parts: Parts, found: Checkpoint, warn: Warn) -> None:
    """The data must be what the run was started with; config, environment and partition files are restored if not."""
    if parts.federation.partition.hash != found.facts["partition"]:
        raise FedfewError("E307", str(folder / PARTITION), "the dataset gives another partition than at the start")
    if found.state.omega.shape != parts.network.vector.shape:
        raise FedfewError("E307", str(folder.checkpoints), "the checkpoint belongs to another model")
    for name, content in static_files(parts, found.facts).items():
        if file_digest(folder / name) != digest(content):
            if (folder / name).exists():
                os.replace(folder / name, folder / f"{name}.changed")  # noqa: PTH105
            write_atomically(folder / name, content)
            warn(FedfewError("E309", str(folder / name), f"had changed since the start and was restored; see {name}.changed", ""))


def model_file(parts: Parts, state: ServerState) -> bytes:
    """The global model as safetensors: named tensors, and in the metadata all that is needed to use it."""
    tensors = {name: view.contiguous() for name, view in parts.network.layout.views(state.omega).items()}
    federation = parts.federation
    about = {
        "model": parts.config["model"],
        "classes": list(federation.classes),
        "shape": list(federation.images.shape[1:]),
        "mean": list(federation.pixels.mean),
        "std": list(federation.pixels.std),
    }
    content: bytes = save_tensors(tensors, metadata={"fedfew": json.dumps(about, sort_keys=True)})
    return content

