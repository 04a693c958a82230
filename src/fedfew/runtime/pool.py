"""A pool of worker processes: one torch thread each, images in shared memory once, longest client first.

If a worker dies, only the update it was working on is lost; it is restarted, and the round goes on.
"""

import contextlib
import math
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfew.core.errors import FedfewError, Refusal
from fedfew.core.layout import Payload, Vector
from fedfew.core.types import ClientUpdate, Fleet, Missing, Scores, Scoring
from fedfew.runtime.arena import Arena, index_bytes, shared_file
from fedfew.runtime.channel import Channel, import_path

STARTUP = 300.0  # seconds a worker has to import torch and build its network, even on a crowded machine


@dataclass(eq=False)
class Worker:
    """A worker process as the pool sees it."""

    process: subprocess.Popen[bytes]
    channel: Channel
    answers: Arena
    lifeline: int
    log: Any
    """The file its output goes to."""
    device: str = ""
    """What it computes on, if that is not the device of the config."""
    job: dict[str, Any] | None = None
    since: float = field(default_factory=monotonic)
    """When it was started or given its job."""
    ready: bool = False
    """Whether it has built its network; before that it gets no job, so that no client is lost if it fails."""

    def log_tail(self) -> str:
        """The end of the log that the process wrote before it died."""
        self.log.seek(max(os.fstat(self.log.fileno()).st_size - 400, 0))
        text: str = self.log.read().decode(errors="replace").strip()
        return text

    def end(self, patience: float = 0.0) -> str:
        """Kill the process if it does not end by itself, free its resources, and return how it ended.

        May be called again, e.g. after Ctrl-C interrupted it.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        status = self.process.wait()
        self.channel.close()
        self.answers.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        self.log.close()
        return f"signal {-status}" if status < 0 else f"status {status}"


class PoolFleet(Fleet):
    """Trains clients on processes that run ``module`` and receive ``hello`` first.

    There is one for each of ``devices``; an empty one is the device of the config. A client has ``timeout`` seconds
    (0: no limit); a reply of more than ``limit`` bytes is not even read.
    """

    def __init__(
        self,
        devices: Sequence[str],
        hello: dict[str, Any],
        data: Mapping[str, Tensor],
        sizes: Sequence[int] | NDArray[np.int64],
        score_here: Callable[[Vector, Vector | None], Scores],
        module: str,
        timeout: float = 0.0,
        limit: int = 1 << 40,
    ) -> None:
        self._sizes, self._timeout, self._limit, self._module = sizes, timeout, limit, module
        self._score_here = score_here
        self._images, self._payloads, self._scoring = Arena(shared_file()), Arena(shared_file()), Arena(shared_file())
        self._hello = hello | {"kind": "hello", "tensors": self._images.write({"data": data})["data"]}
        self._selector = selectors.DefaultSelector()
        self._memory: dict[int, dict[str, Tensor]] = {}
        self._secrets: dict[int, dict[str, Tensor]] = {}
        """What clients keep between the exchanges of a sum; here, because any worker may answer for a client."""
        self._scores: Scores | None = None
        self._deaths = 0
        self._workers: list[Worker] = []
        try:
            for device in devices:
                self._start(device)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def _start(self, device: str) -> None:
        with contextlib.ExitStack() as undo:  # after a failure all resources are released
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            undo.callback(theirs.close)
            watched, lifeline = os.pipe()
            undo.callback(os.close, lifeline)
            undo.callback(os.close, watched)
            answers = Arena(shared_file())
            undo.callback(answers.close)
            log = undo.enter_context(tempfile.TemporaryFile())
            files = [theirs.fileno(), self._images.descriptor, self._payloads.descriptor, self._scoring.descriptor]
            files += [answers.descriptor, watched]
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._module, *map(str, files)],
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches this process only, which then ends the workers
                    env=_surroundings(),
                )
            except OSError as error:
                raise FedfewError("E502", "fleet", f"no worker process can be started: {error}") from error
            self._workers.append(worker := Worker(process, Channel(ours), answers, lifeline, log, device))
            undo.pop_all()
        theirs.close()
        os.close(watched)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        with contextlib.suppress(OSError):  # it died at once: noticed when its channel is read
            worker.channel.send(self._hello | {"device": device})

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they arrive; the result does not depend on which worker trains which client."""
        groups: dict[str, Mapping[str, Tensor]] = {f"payload/{k}": payload for k, payload in payloads.items()}
        groups |= {f"memory/{k}": self._memory.get(k, {}) for k in payloads}
        groups |= {f"secrets/{k}": self._secrets.get(k, {}) for k in payloads}
        index = self._payloads.write(groups)
        waiting = sorted(payloads, key=lambda k: (self._sizes[k], -k))  # the largest is taken first, from the end
        open_jobs = len(waiting)
        while open_jobs:
            for worker in list(self._workers):
                if worker.ready and worker.job is None and waiting and self._alive(worker):
                    k = waiting.pop()
                    tensors = {group: index[f"{group}/{k}"] for group in ("payload", "memory", "secrets")}
                    self._give(worker, {"kind": "train", "round": round, "client": k, "tensors": tensors})
            for answer in self._answers():
                open_jobs -= 1
                yield answer

    def _alive(self, worker: Worker) -> bool:
        """False for a worker that ended while idle: it is replaced, and no client is lost."""
        if worker.process.poll() is None:
            return True
        for _ in self._replace(worker, Refusal.DIED, ""):
            pass
        return False

    def _give(self, worker: Worker, job: dict[str, Any]) -> None:
        worker.job, worker.since = job, monotonic()
        with contextlib.suppress(OSError):
            worker.channel.send(job)

    def _answers(self, wait: bool = True) -> Iterator[ClientUpdate | Missing]:
        """The workers' next answers; deaths and deadlines are answers too. Scores are set aside."""
        for key, _ in self._selector.select(self._patience() if wait else 0.0):
            worker: Worker = key.data
            message = worker.channel.receive()
            if message is None:
                yield from self._replace(worker, Refusal.DIED, "its worker process ended")
            elif message["kind"] == "ready":
                worker.ready = True
            else:
                worker.job, self._deaths = None, 0
                if message["kind"] == "score":
                    self._scores = Scores(**message["scores"])
                elif message["kind"] == "missing":
                    yield Missing(message["client"], Refusal(message["code"]), message["reason"])
                else:
                    yield self._update(worker, message)
        for worker in list(self._workers):
            if self._left(worker) <= 0 and worker.ready:
                yield from self._replace(worker, Refusal.NO_ANSWER, f"no answer within {self._timeout:g} s")
            elif self._left(worker) <= 0:
                yield from self._replace(worker, Refusal.DIED, f"its worker process was not ready within {STARTUP:g} s")

    def _left(self, worker: Worker) -> float:
        """Seconds until a worker times out."""
        if not worker.ready:
            return worker.since + STARTUP - monotonic()
        if not self._timeout or worker.job is None or worker.job["kind"] != "train":
            return math.inf
        return worker.since + self._timeout - monotonic()

    def _patience(self) -> float | None:
        """How long to wait for a message."""
        left = min(self._left(worker) for worker in self._workers)
        return None if left == math.inf else max(left, 0.0)

    def _update(self, worker: Worker, message: dict[str, Any]) -> ClientUpdate | Missing:
        client, tensors = message["client"], message["tensors"]
        try:
            size = index_bytes(tensors["reply"])
            if size > self._limit:
                reason = f"the reply has {size:,} bytes, at most {self._limit // 2:,} are possible"
                return Missing(client, Refusal.TOO_LARGE, reason)
            reply = worker.answers.read(tensors["reply"], copy=True)
            memory = worker.answers.read(tensors["memory"], copy=True)
            self._secrets[client] = worker.answers.read(tensors.get("secrets", {}), copy=True)
        except ValueError as error:
            return Missing(client, Refusal.SHAPE, f"the reply cannot be read: {error}")
        self._memory.pop(client, None)
        if memory:
            self._memory[client] = memory
        return ClientUpdate(client, reply, message["examples"], message["metrics"])

    def _replace(self, worker: Worker, code: Refusal, reason: str) -> Iterator[Missing]:
        """Replace a worker that ended or was too slow; the client it worked on is missing."""
        job, log = worker.job, worker.log_tail()
        self._selector.unregister(worker.channel.end)
        status = worker.end(patience=1.0 if code == Refusal.DIED else 0.0)
        self._workers.remove(worker)
        self._deaths += code == Refusal.DIED  # a slow client is not a dead worker
        if self._deaths > 3 + 2 * len(self._workers):
            raise FedfewError("E502", "fleet", f"{self._deaths} workers ended one after the other ({status}): {log}")
        self._start(worker.device)
        if job is not None and job["kind"] == "train":
            tail = log.splitlines()[-1:] if code == Refusal.DIED else []
            yield Missing(
                job["client"], code, " ".join([f"{reason} ({status})" if code == Refusal.DIED else reason, *tail])
            )

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        """Start scoring in a free worker, if there is one."""
        self._scores = None
        for _ in self._answers(wait=False):  # notes which workers became ready or died
            pass
        free = [worker for worker in self._workers if worker.ready and worker.job is None]
        if free:
            models = {"omega": omega} | ({} if clients is None else {"clients": clients})
            index = self._scoring.write({"score": models})
            self._give(free[0], {"kind": "score", "tensors": index})
        return partial(self._wait_for_scores, omega, clients)

    def _wait_for_scores(self, omega: Vector, clients: Vector | None) -> Scores:
        """The scores requested last; computed here if the worker that had the job died."""
        while self._scores is None and any(w.job is not None and w.job["kind"] == "score" for w in self._workers):
            for _ in self._answers():
                pass
        return self._scores or self._score_here(omega, clients)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        """The clients' memory between rounds, for the checkpoint."""
        return self._memory

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """Restore the clients' memory from a checkpoint."""
        self._memory = dict(memory)

    def close(self) -> None:
        """End every worker; nothing is left running. May be called twice."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()
        for arena in (self._images, self._payloads, self._scoring):
            arena.close()


def _surroundings() -> dict[str, str]:
    """The workers' environment: one thread each, and this process's import path, for a user's own code."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": import_path()}
