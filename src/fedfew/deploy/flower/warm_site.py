"""A site's warm process: images, network and torch loaded once; answers the ClientApp over a Unix socket.

Every tensor that leaves is first written to the ledger; the memory of clients stays in the site's folder.
"""

import hashlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.types import ClientUpdate, Payload
from fedfew.deploy.flower.frames import FrameError, Parts, receive, send
from fedfew.deploy.flower.tensors import pack, raw, unpack
from fedfew.runtime.site import Sites

KEPT = 3
"""Rounds of which a client's memory is kept, so that a server that fell back a round finds what it had."""
_PATIENCE = 120.0


@dataclass(frozen=True)
class Ready:
    """A site that is built for one config."""

    sites: Sites
    serves: Callable[[int], bool]
    """Whether a client lives here."""


@dataclass(eq=False)
class WarmSite:
    """Answers heads and parts; ``build`` makes the site for the config a server sends, once."""

    number: int
    build: Callable[[Mapping[str, Any]], Ready]
    state: Path
    secret: bytes = b""
    """Mixed into every draw of a real site, so that nobody else knows its noise; empty in a trial, for equal bits."""
    memory: Path | None = None
    """Where clients' memories are kept; None: in ``state``."""
    _ready: tuple[str, Ready] | None = None
    _newest: dict[str, int] = field(default_factory=dict)
    _last: tuple[str, dict[str, Any], dict[str, memoryview]] | None = None

    def answer(self, head: Mapping[str, Any], parts: Parts) -> tuple[dict[str, Any], Parts]:
        """The reply to one message."""
        if head.get("kind") == "hello":
            return {"site": self.number}, {}
        fingerprint = _fingerprint(head, parts)
        if self._last is not None and self._last[0] == fingerprint:
            return self._last[1], self._last[2]  # asked again, because the first answer was lost on the way
        run, round = str(head["run"]), int(head["round"])
        reply: dict[str, Any] = {"run": run, "round": round, "site": self.number}
        if round < self._newest.get(run, 0) - 1:
            return reply | self._refuse(head, "E408", f"round {round + 1} is long over"), {}
        self._newest = {run: round}
        try:
            ready = self._built(head)
        except FedfewError as fault:
            return reply | self._refuse(head, "E417", str(fault)), {}
        reply["answers"], parts_up = self._train_all(ready, head, parts, fingerprint)
        self._last = (fingerprint, reply, parts_up)
        return reply, parts_up

    def _built(self, head: Mapping[str, Any]) -> Ready:
        key = json.dumps([head["config"], head["about"]], sort_keys=True)
        if self._ready is None or self._ready[0] != key:
            self._ready = None  # free the old one first
            self._ready = (key, self.build(head))
        return self._ready[1]

    @staticmethod
    def _refuse(head: Mapping[str, Any], code: str, reason: str) -> dict[str, Any]:
        return {"answers": [{"client": job["client"], "code": code, "reason": reason} for job in head["jobs"]]}

    def _train_all(
        self, ready: Ready, head: Mapping[str, Any], parts: Parts, fingerprint: str
    ) -> tuple[list[dict[str, Any]], dict[str, memoryview]]:
        answers: list[dict[str, Any]] = []
        replies: dict[str, dict[str, Tensor]] = {}
        for job in head["jobs"]:
            client = int(job["client"])
            if not ready.serves(client):
                answers.append({"client": client, "code": "E417", "reason": f"client {client} does not live here"})
                continue
            update = self._train(ready.sites, head, client, unpack(job["tensors"], parts), fingerprint)
            if isinstance(update, ClientUpdate):
                replies[str(client)] = dict(update.reply)
                answers.append(
                    {"client": client, "examples": update.examples, "metrics": self._reported(update.metrics)}
                )
            else:
                answers.append({"client": client, "code": update.code, "reason": update.reason})
        index, parts_up = pack(replies)
        for answer in answers:
            if str(answer["client"]) in index:
                answer["tensors"] = index[str(answer["client"])]
        self._write_ledger(head, answers, replies)
        return answers, parts_up

    def _reported(self, metrics: dict[str, float]) -> dict[str, float]:
        """A real site does not report how its pseudo-labels fall to the classes."""
        if not self.secret:
            return metrics
        return {name: value for name, value in metrics.items() if name != "right" and not name.startswith("class/")}

    def _train(self, sites: Sites, head: Mapping[str, Any], client: int, payload: Payload, fingerprint: str) -> Any:
        """One client's round, with its memory as it was before this round, whatever was tried since."""
        run, round = str(head["run"]), int(head["round"])
        memory = Memory(self.memory or self.state / "memory", run, client)
        sites.memory.clear()
        if before := memory.before(round):
            sites.memory[client] = before
        if self.secret:  # another payload draws other noise: the difference of two answers must not be free of it
            seed = hashlib.sha256(self.secret + fingerprint.encode()).digest()
            sites = replace(sites, seed=int.from_bytes(seed, "little"))
        update = sites.train(round, client, payload)
        if isinstance(update, ClientUpdate):
            memory.write(round, sites.memory.get(client, {}))
        return update

    def _write_ledger(
        self, head: Mapping[str, Any], answers: list[dict[str, Any]], replies: dict[str, dict[str, Tensor]]
    ) -> None:
        """One line for each tensor that is about to leave, and one for the numbers beside them."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        common = {"time": time, "run": head["run"], "round": int(head["round"]) + 1}
        lines = []
        for answer in answers:
            if "examples" not in answer:
                continue
            client = answer["client"]
            for name, tensor in replies[str(client)].items():
                content = raw(tensor)
                about = {"tensor": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
                seal = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                lines.append(common | {"client": client} | about | seal)
            lines.append(common | {"client": client, "examples": answer["examples"], "metrics": answer["metrics"]})
        with (self.state / "ledger.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class Memory:
    """What a client keeps between rounds: one file for each round after which it changed."""

    folder: Path
    run: str
    client: int

    def _files(self) -> list[tuple[int, Path]]:
        """Newest first."""
        found = self.folder.glob(f"{self.run}-{self.client}-*.safetensors")
        return sorted(((int(path.stem.rpartition("-")[2]), path) for path in found), reverse=True)

    def before(self, round: int) -> dict[str, Tensor]:
        """The memory as it was when ``round`` began."""
        for written, path in self._files():
            if written < round:
                tensors: dict[str, Tensor] = load_file(path)
                return tensors
        return {}

    def write(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the memory after ``round``; what had been written for later rounds belongs to a course not taken."""
        for written, path in self._files():
            if written >= round:
                path.unlink()
        if not tensors:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"{self.run}-{self.client}-{round:06d}.safetensors"
        save_file({name: t.contiguous() for name, t in tensors.items()}, final.with_suffix(".tmp"))
        final.with_suffix(".tmp").replace(final)
        for _, path in self._files()[KEPT:]:
            path.unlink()


def serve(site: WarmSite, listener: socket.socket, limit: int) -> None:
    """Answer one connection after the other; one that breaks off or sends nonsense costs only itself."""
    while True:
        end, _ = listener.accept()
        with end:
            end.settimeout(_PATIENCE)
            try:
                head, parts = receive(end, limit)
                try:
                    reply, content = site.answer(head, parts)
                except (ValueError, KeyError, TypeError) as error:  # a message of another making
                    reply, content = {"error": f"{type(error).__name__}: {error}"[:400]}, {}
                send(end, reply, content)
            except FrameError as error:
                print(f"a connection broke: {error}", flush=True)


def _fingerprint(head: Mapping[str, Any], parts: Parts) -> str:
    """What a message asks for, as a hash."""
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, part in parts.items():
        digest.update(name.encode())
        digest.update(part)
    return digest.hexdigest()
