"""A site's ledger: what came in and what left, line by line, each line sealed by the hash of all before it.

A line that is changed, left out or moved breaks the chain. The chain cannot show that its last lines were cut off: so
`fedfew ledger verify` prints its last hash, which can be noted elsewhere and looked for later.
"""

import fcntl
import hashlib
import json
import os
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically, writing
from fedfew.deploy.messages.frames import Arrays, encode
from fedfew.deploy.messages.heads import plan_hash
from fedfew.deploy.messages.tensors import INLINE

NAME = "ledger.jsonl"
CONTENT = "content"
"""Folder of the frames that a site keeps on request, by their SHA-256."""
_CHAIN = "chain"
Frame = Sequence[bytes | memoryview]


@dataclass(frozen=True)
class Ledger:
    """The ledger in a site's folder; several processes may write to it."""

    folder: Path
    terms: Mapping[str, Any] = field(default_factory=dict)
    """The limits under which the site answers; they are recorded, and may ask to keep the content of messages."""

    @property
    def path(self) -> Path:
        return self.folder / NAME

    def received(self, head: Mapping[str, Any], text: str, arrays: Arrays) -> None:
        """Record a message before it is acted on: what it asks for, and its hash."""
        jobs = head.get("jobs")
        kind = str(head.get("kind"))[:16]
        about = {"received": kind, "clients": len(jobs) if isinstance(jobs, list) else 0, "tensors": len(arrays)}
        plan = {"plan": plan_hash(head)} if "config" in head and "about" in head else {}
        self.append([_run_and_round(head) | about | plan | self._sealed(encode(text, arrays))])

    def sent(self, head: Mapping[str, Any], reply: Mapping[str, Any], frame: Frame) -> None:
        """Record a reply before it leaves: a line for each tensor, and one for the message that carries them."""
        common = _run_and_round(head)
        message = {"message": reply} | self._sealed(frame) | ({"limits": dict(self.terms)} if self.terms else {})
        lines = [*_tensors(reply, frame[1:]), message]
        self.append([common | line for line in lines])

    def _sealed(self, frame: Frame) -> dict[str, Any]:
        digest = hashlib.sha256()
        for piece in frame:
            digest.update(piece)
        if self.terms.get("keep_content"):
            (self.folder / CONTENT).mkdir(exist_ok=True)
            write_atomically(self.folder / CONTENT / digest.hexdigest(), b"".join(frame))
        return {"bytes": sum(map(len, frame)), "sha256": digest.hexdigest()}

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to the chain; returns when they are on disk."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with writing(self.path), self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            chain = _end_of_chain(file)
            for line in lines:
                content = {"time": now, **line}
                chain = _link(chain, content)
                file.write(json.dumps(content | {_CHAIN: chain}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _run_and_round(head: Mapping[str, Any]) -> dict[str, Any]:
    """Run and round of a message, as far as they are what they should be."""
    run, round = head.get("run"), head.get("round")
    about: dict[str, Any] = {"run": run[:64]} if isinstance(run, str) else {}
    return about | ({"round": round + 1} if type(round) is int else {})


def _tensors(reply: Mapping[str, Any], arrays: Frame) -> Iterator[dict[str, Any]]:
    """The tensors in the index of a reply, one by one."""
    for answer in reply.get("answers", []):
        for name, (array, shape, dtype) in answer.get("tensors", {}).items():
            content = b64decode(array.removeprefix(INLINE)) if array.startswith(INLINE) else arrays[int(array)]
            about = {"client": answer["client"], "tensor": name, "shape": shape, "dtype": dtype}
            yield about | {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _link(chain: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{chain}\n{json.dumps(content)}".encode()).hexdigest()


def _end_of_chain(file: BinaryIO) -> str:
    """The hash of the last line. A line that a crash cut off is removed: what it recorded never left."""
    end, size = file.seek(0, os.SEEK_END), 1 << 12
    while True:
        file.seek(max(end - size, 0))
        tail = file.read()
        complete = tail[: tail.rfind(b"\n") + 1]
        line = complete[complete.rfind(b"\n", 0, -1) + 1 :]
        if size >= end or len(line) < len(complete):
            break
        size *= 4
    file.truncate(end - len(tail) + len(complete))
    return str(json.loads(line).get(_CHAIN, "")) if line else ""


@dataclass
class Traffic:
    """The messages of one run."""

    received: int = 0
    bytes_in: int = 0
    sent: int = 0
    bytes_out: int = 0
    rounds: set[int] = field(default_factory=set)
    """Rounds for which tensors left."""
    tensors: set[str] = field(default_factory=set)
    """Name and shape of what left."""
    codes: Counter[str] = field(default_factory=Counter)
    """Codes that left in the place of an update."""


@dataclass
class LedgerSummary:
    """What a verified ledger says."""

    lines: int = 0
    chain: str = ""
    """The last hash."""
    noted: bool = False
    """Whether the hash that was looked for is in the chain."""
    first: str = ""
    last: str = ""
    runs: dict[str, Traffic] = field(default_factory=dict)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """What people at the site decided: approvals, pauses."""


def verify(folder: Path, noted: str = "") -> LedgerSummary:
    """The summary of a ledger; E513 with the line where its chain or kept content is broken."""
    path, summary = (folder / NAME if folder.is_dir() else folder), LedgerSummary()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FedfewError("E513", str(path), f"cannot be read: {error.strerror}") from None
    for number, raw in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(raw)
            sealed = line.pop(_CHAIN)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise FedfewError("E513", f"{path}:{number}", "is not a line of a ledger") from None
        if sealed != _link(summary.chain, line):
            raise FedfewError("E513", f"{path}:{number}", "does not follow from the lines before it")
        digest = str(line.get("sha256", ""))
        kept = path.parent / CONTENT / digest
        if digest.isalnum() and kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() != kept.name:
            raise FedfewError("E513", str(kept), f"is not the content that line {number} records")
        summary.chain, summary.lines = sealed, number
        summary.noted = summary.noted or sealed.startswith(noted)
        try:
            _count(summary, line)
        except (ValueError, KeyError, AttributeError, TypeError):
            raise FedfewError("E513", f"{path}:{number}", "is in the chain, but no site writes such a line") from None
    if noted and not summary.noted:
        raise FedfewError("E513", str(path), f"has no line with the hash {noted}: lines were cut off or replaced")
    return summary


def _count(summary: LedgerSummary, line: Mapping[str, Any]) -> None:
    summary.first, summary.last = summary.first or line["time"], line["time"]
    if "decision" in line:
        summary.decisions.append(dict(line))
        return
    run = summary.runs.setdefault(line.get("run", "–"), Traffic())
    if "received" in line:
        run.received += 1
        run.bytes_in += line["bytes"]
    elif "tensor" in line:
        run.tensors.add(f"{line['tensor']} {'×'.join(map(str, line['shape']))}")
        run.rounds.add(line.get("round", 0))
    elif "message" in line:
        run.sent += 1
        run.bytes_out += line["bytes"]
        message = line["message"]
        run.codes.update(one["code"] for one in [message, *message.get("answers", [])] if "code" in one)
