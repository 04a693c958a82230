"""A run in progress: started in a new folder or resumed in an old one, advanced round by round, resumable."""

import contextlib
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from fedfew.config import parts as build
from fedfew.config.names import own_code
from fedfew.config.parts import Parts, local_fleet
from fedfew.config.schema import check, load
from fedfew.config.tables import apply_overrides
from fedfew.config.tree import Config
from fedfew.core.environment import environment, keep_freed_memory
from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, digest, file_digest, locked, write_atomically
from fedfew.core.types import Fleet, Report, ServerState
from fedfew.runs.checkpoints import Checkpoints, Memory, Warmup
from fedfew.runs.files import (
    as_json,
    compare_environment,
    final_files,
    has_ended,
    refuse_foreign,
    refuse_misfit,
    repair,
    static_files,
)  # fmt: skip
from fedfew.runs.folder import BEST, CONFIG, ENVIRONMENT, WARMUP, RunFolder, new_folder, staged
from fedfew.runs.journal import Journal, begin, go_on, sealed
from fedfew.runs.model_file import first_weights, model_file
from fedfew.runs.model_file import sealed as sealed_model
from fedfew.runs.reading import Facts, fits
from fedfew.runs.run import Run
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds


class NetworkModule(Protocol):
    """A module of networks, whose rounds run in another process and are followed here."""

    def assemble(self, config: Config, report: Report | None = None) -> Parts: ...

    def advance(self, session: "Session", report: Report | None = None) -> Generator[RoundRecord]: ...


@dataclass(eq=False)
class Session:
    """One process's work on a run."""

    folder: RunFolder
    parts: Parts
    state: ServerState
    memory: Memory
    facts: dict[str, Any]
    """Facts in every manifest besides the state: config, environment, partition's hash, the journal's seal."""
    warmup: Warmup

    @property
    def rounds(self) -> int:
        """How many rounds the run has in total."""
        return self.parts.config.rounds

    @property
    def done(self) -> bool:
        """Whether no round is left: all are done, or the run ends early."""
        return has_ended(self.folder, self.parts, self.state)

    @property
    def saved(self) -> str:
        """Where a resume would continue, according to the disk."""
        done, warmed = Checkpoints(self.folder.checkpoints).last_round(), Run(self.folder).warmup
        if done or warmed is None:
            return f"after round {done}" if done else "before the first round"
        return f"in the warm-up, after pass {warmed.done} of {warmed.total}"

    def advance(self, report: Report | None = None, fleet: Fleet | None = None) -> Generator[RoundRecord]:
        """The remaining rounds; each is on disk when it is yielded; at the end, model and summary are too.

        ``report`` is called during a warm-up before the first round, with the passes that are done and their total.
        ``fleet`` replaces the one that the config names.
        """
        config = self.parts.config
        alone = fleet is not None or self.done or (config.remote and not config.entry.asks_clients)
        network = None if alone else network_of(config)
        if network is not None:
            yield from network.advance(self, report)
            return
        self.warmup.report = report or self.warmup.report
        store = Checkpoints(self.folder.checkpoints)
        with locked(self.folder.path), one_thread():
            if store.last_round() != self.state.round:
                raise FedfewError("E306", str(self.folder.path), "another process has continued it meanwhile")
            journal = go_on(self.folder, self.facts["rounds"])
            if not self.done:
                with contextlib.closing(fleet or local_fleet(self.parts)) as chosen:
                    chosen.remember(self.memory)
                    parts = self.parts
                    for state, record in run_rounds(
                        parts.clients, parts.algorithm, parts.server, chosen, self.state, self.rounds,
                        parts.config.max_skipped, parts.config.evaluate, self.warmup,
                    ):  # fmt: skip
                        self._commit(store, journal, state, chosen.memory(), record)
                        yield record
                        if self.done:
                            break
                    chosen.end()
            for name, content in final_files(self.folder, self.parts, self.state).items():
                if file_digest(self.folder / name) != digest(content):
                    write_atomically(self.folder / name, content)

    def _commit(
        self, store: Checkpoints, journal: Journal, state: ServerState, memory: Memory, record: RoundRecord
    ) -> None:
        start = perf_counter()
        if record["validation"] is not None and state.validation[-1] > max(state.validation[:-1], default=-1.0):
            write_atomically(self.folder / BEST, sealed_model(model_file(self.parts, state)))
        files = store.write_state(state, memory)
        record["seconds"]["checkpoint"] = round(perf_counter() - start, 4)
        facts = self.facts | {"rounds": journal.append(record)}
        store.commit(state.round, files, facts)
        self.state, self.memory, self.facts = state, memory, facts


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Equal bits need an equal number of threads: one, in every process; the caller's setting is restored afterwards.

    Freed memory is kept from then on, in the caller's process too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def network_of(config: Config) -> NetworkModule | None:
    """The network that the config asks for, if any; imported only then."""
    if config.fleet.kind != "flower":
        return None
    from fedfew.core.extras import require  # noqa: PLC0415 - a local run needs no network

    require("flower", "fleet.kind = 'flower'")
    network: NetworkModule = import_module("fedfew.deploy.server.network")
    return network


def assemble(config: Config, report: Report | None = None) -> Parts:
    """The parts of a run, here or on a network."""
    network = network_of(config)
    return network.assemble(config, report) if network else build.assemble(config, report=report)


def start(
    config: Config, out: str | Path | None = None, command: str = "", report: Report | None = None, *, tuned: str = ""
) -> Session:
    """Build everything first, so that an error leaves nothing behind; then move the complete folder to its place.

    ``tuned`` says how the settings were searched for, if they were.
    """
    path = new_folder(out, f"{config.dataset.name}-{config.method_name}".replace(":", "."))
    with one_thread():
        parts = assemble(config, report)
    state = parts.algorithm.start(first_weights(config.start, parts))
    recorded = environment(command, parts.network.device) | ({"tuned": tuned} if tuned else {})
    facts = {
        "document": parts.config.document,
        "start": digest(state.omega.numpy().tobytes()),
        "environment": recorded,
        "partition": parts.federation.partition.hash,
        "images": parts.federation.fingerprint(),
        "state_format": parts.config.method.state_format,
    }
    with staged(path) as folder:
        for name, content in static_files(parts, facts).items():
            write_atomically(folder / name, content)
        facts |= {"rounds": begin(folder)}
        store = Checkpoints(folder.checkpoints)
        store.commit(0, store.write_state(state, {}), facts)
    return Session(RunFolder(path), parts, state, {}, facts, Warmup(RunFolder(path).checkpoints / WARMUP))


def reopen(
    path: str | Path,
    warn: Warn,
    overrides: dict[str, Any] | None = None,
    *,
    anyway: bool = False,
    report: Report | None = None,
    allow_code: Collection[str] = (),
) -> Session:
    """Resume a run from its newest intact checkpoint; damage in the folder is reported and repaired.

    Only the fleet may be changed by ``overrides``: it has no influence on the result. The folder may name code outside
    fedfew only if ``allow_code`` does.
    """
    folder = RunFolder.open(path)
    fixed = [key for key in overrides or {} if not key.startswith("fleet.")]
    if fixed:
        raise FedfewError(
            "E307", str(path), f"{', '.join(fixed)} cannot change in a run that has started", "Start a new run for that"
        )
    with locked(folder.path), one_thread():
        store = Checkpoints(folder.checkpoints)
        checkpoint = store.newest(
            lambda facts: fits(Facts, facts) and sealed(folder, facts["rounds"]) is not None, warn
        )
        refuse_foreign(folder, checkpoint.facts)
        document = apply_overrides(checkpoint.facts["document"], overrides or {})
        config = check(document, str(folder / CONFIG), allow_code)
        recorded = compare_environment(str(path), checkpoint, config.engine, warn, anyway=anyway)
        parts = assemble(config, report)
        refuse_misfit(folder, parts, checkpoint)
        store.repair(checkpoint, warn)
        repair(folder, parts, checkpoint, warn)
        warmup = Warmup.open(folder.checkpoints, warn)
        if recorded != checkpoint.facts["environment"]:
            write_atomically(folder / ENVIRONMENT, as_json(recorded))
    facts = checkpoint.facts | {"environment": recorded}
    return Session(folder, parts, checkpoint.state, checkpoint.memory, facts, warmup)


@dataclass(frozen=True)
class Experiment:
    """A checked config, ready to run."""

    config: Config

    @staticmethod
    def load(
        source: str | Path | dict[str, Any],
        overrides: Mapping[str, Any] | None = None,
        *,
        keep_settings: bool = False,
    ) -> "Experiment":
        """From a preset's name, a TOML file or a table; ``overrides`` are dotted, e.g. {"partition.mu": 0.1}.

        A method that they name is as published, or with ``keep_settings`` has the settings of the config's own.
        """
        return Experiment(load(source, overrides, keep_settings=keep_settings))

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
