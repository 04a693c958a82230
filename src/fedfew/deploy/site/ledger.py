"""A site's ledger: every message that leaves, with all its fields and tensors, recorded before it leaves."""

import hashlib
import json
import os
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfew.deploy.messages.tensors import INLINE


@dataclass(frozen=True)
class Ledger:
    """ledger.jsonl: a line for each tensor, and one for the message that carries them."""

    path: Path

    def write(self, asked: Mapping[str, Any], reply: Mapping[str, Any], frame: Iterable[bytes | memoryview]) -> None:
        """Record a reply and wait until it is on disk; ``frame``: its bytes as they leave, head first."""
        pieces = list(frame)
        common: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
        if isinstance(asked.get("run"), str) and type(asked.get("round")) is int:
            common |= {"run": asked["run"], "round": asked["round"] + 1}
        lines = [common | line for line in _tensors(reply, pieces[1:])]
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        seal = {"bytes": sum(map(len, pieces)), "sha256": digest.hexdigest()}
        lines.append(common | {"message": reply} | seal)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


def _tensors(reply: Mapping[str, Any], arrays: list[bytes | memoryview]) -> Iterable[dict[str, Any]]:
    """The tensors in the index of a reply, one by one."""
    for answer in reply.get("answers", []):
        for name, (array, shape, dtype) in answer.get("tensors", {}).items():
            content = b64decode(array.removeprefix(INLINE)) if array.startswith(INLINE) else arrays[int(array)]
            about = {"client": answer["client"], "tensor": name, "shape": shape, "dtype": dtype}
            yield about | {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
