"""A pool of worker processes: one torch thread each, images in shared memory once, longest client first.

A worker that dies costs the update it was working on; it is started again, and the round goes on.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.types import ClientUpdate, Missing, Payload, Scores
from fedfew.runtime.arena import Arena, shared_file
from fedfew.runtime.channel import Channel


@dataclass(eq=False)
class Worker:
    """A worker process as the pool sees it."""

    process: subprocess.Popen[bytes]
    channel: Channel
    answers: Arena
    lifeline: int
    words: Any
    """The file its error output goes to."""
    job: dict[str, Any] | None = None
    since: float = field(default_factory=monotonic)

    def last_words(self) -> str:
        """The end of what the process wrote before it died."""
        self.words.seek(0)
        text: str = self.words.read().decode(errors="replace").strip()
        return text[-400:]

    def end(self) -> None:
        """Kill the process and free what belongs to it."""
        self.process.kill()
        self.process.wait()
        self.channel.end.close()
        self.answers.close()
        os.close(self.lifeline)
        self.words.close()


class PoolFleet:
    """Trains clients on ``workers`` processes, each started by ``command`` and greeted with ``hello``."""

    def __init__(
        self,
        workers: int,
        hello: dict[str, Any],
        data: Mapping[str, Tensor],
        sizes: Sequence[int],
        score_here: Callable[[Vector], Scores],
        timeout: float = 0.0,
        module: str = "fedfew.experiment.worker",
    ) -> None:
        self._sizes, self._timeout, self._module = sizes, timeout, module
        self._score_here = score_here
        self._images, self._payloads, self._scoring = Arena(shared_file()), Arena(shared_file()), Arena(shared_file())
        self._hello = hello | {"kind": "hello", "tensors": self._images.write({"data": data})["data"]}
        self._selector = selectors.DefaultSelector()
        self._memory: dict[int, dict[str, Tensor]] = {}
        self._scores: Scores | None = None
        self._deaths = 0
        self._workers: list[Worker] = []
        try:
            for _ in range(workers):
                self._start()
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def _start(self) -> Worker:
        ours, theirs = socket.socketpair()
        watched, lifeline = os.pipe()
        answers, words = Arena(shared_file()), tempfile.TemporaryFile()  # noqa: SIM115 - closed by Worker.end
        files = [theirs.fileno(), self._images.descriptor, self._payloads.descriptor, self._scoring.descriptor]
        files += [answers.descriptor, watched]
        process = subprocess.Popen(
            [sys.executable, "-m", self._module, *map(str, files)],
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the workers
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        theirs.close()
        os.close(watched)
        worker = Worker(process, Channel(ours), answers, lifeline, words)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        with contextlib.suppress(OSError):  # it died at once: noticed when its channel is read
            worker.channel.send(self._hello)
        return worker

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """Answers as they come in; which worker does which client does not matter for the result."""
        groups: dict[str, Mapping[str, Tensor]] = {f"payload/{k}": payload for k, payload in payloads.items()}
        groups |= {f"memory/{k}": self._memory.get(k, {}) for k in payloads}
        index = self._payloads.write(groups)
        waiting = sorted(payloads, key=lambda k: (self._sizes[k], -k))  # the longest is taken from the end
        open_jobs = len(waiting)
        while open_jobs:
            for worker in [w for w in self._workers if w.job is None]:
                if waiting:
                    k = waiting.pop()
                    tensors = {"payload": index[f"payload/{k}"], "memory": index[f"memory/{k}"]}
                    self._give(worker, {"kind": "train", "round": round, "client": k, "tensors": tensors})
            for answer in self._answers():
                open_jobs -= 1
                yield answer

    def _give(self, worker: Worker, job: dict[str, Any]) -> None:
        worker.job, worker.since = job, monotonic()
        with contextlib.suppress(OSError):
            worker.channel.send(job)

    def _answers(self) -> Iterator[ClientUpdate | Missing]:
        """What the workers have to say next; deaths and deadlines are answers too. Scores are put aside."""
        patience = 1.0 if self._timeout else None
        for key, _ in self._selector.select(patience):
            worker: Worker = key.data
            job, message = worker.job, worker.channel.receive()
            if message is None:
                yield from self._bury(worker, "E409", "its worker process ended")
                continue
            worker.job, self._deaths = None, 0
            if message["kind"] == "score":
                self._scores = Scores(**message["scores"])
            elif message["kind"] == "missing":
                yield Missing(message["client"], message["code"], message["reason"])
            elif job is not None:
                yield self._update(worker, message)
        if self._timeout:
            for worker in list(self._workers):
                if worker.job is not None and monotonic() - worker.since > self._timeout:
                    yield from self._bury(worker, "E410", f"no answer within {self._timeout:g} s")

    def _update(self, worker: Worker, message: dict[str, Any]) -> ClientUpdate:
        client = message["client"]
        memory = worker.answers.read(message["tensors"]["memory"], copy=True)
        if memory:
            self._memory[client] = memory
        reply = worker.answers.read(message["tensors"]["reply"], copy=True)
        return ClientUpdate(client, reply, message["examples"], message["metrics"])

    def _bury(self, worker: Worker, code: str, reason: str) -> Iterator[Missing]:
        """Replace a dead worker; the client it worked on is missing."""
        job, words = worker.job, worker.last_words()
        self._selector.unregister(worker.channel.end)
        self._workers.remove(worker)
        status = worker.process.poll()
        worker.end()
        self._deaths += 1
        if self._deaths > 3 + 2 * len(self._workers):
            raise FedfewError("E502", "fleet", f"{self._deaths} workers ended one after the other ({status}): {words}")
        self._start()
        if job is not None and job["kind"] == "train":
            tail = words.splitlines()[-1:] if words else []
            yield Missing(job["client"], code, " ".join([reason, *tail]))

    def score(self, omega: Vector) -> "PoolScoring":
        """Start scoring in a free worker, if there is one."""
        self._scores = None
        free = [worker for worker in self._workers if worker.job is None]
        if free:
            index = self._scoring.write({"score": {"omega": omega}})
            self._give(free[0], {"kind": "score", "tensors": index})
        return PoolScoring(self, omega)

    def wait_for_scores(self, omega: Vector) -> Scores:
        """The scores asked for last; worked out here if the worker that had the job died."""
        while self._scores is None and any(w.job is not None and w.job["kind"] == "score" for w in self._workers):
            for _ in self._answers():
                pass
        return self._scores or self._score_here(omega)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        """What the clients keep between rounds, for the checkpoint."""
        return self._memory

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        """Go on from a checkpoint."""
        self._memory = dict(memory)

    def close(self) -> None:
        """End every worker; nothing is left running."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()
        for arena in (self._images, self._payloads, self._scoring):
            arena.close()


@dataclass(frozen=True, eq=False)
class PoolScoring:
    """Scores that a worker is working on."""

    pool: PoolFleet
    omega: Vector

    def result(self) -> Scores:
        return self.pool.wait_for_scores(self.omega)
