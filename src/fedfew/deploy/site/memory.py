"""What a client remembers between rounds: files at its site, one for each round after which it changed."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from fedfew.core.storage import write_atomically

KEPT_ROUNDS = 3
"""Rounds for which a memory is kept, so that a server that falls back a round finds the one before it."""


@dataclass(frozen=True)
class Memory:
    """One client's memory in one run."""

    folder: Path
    run: str
    client: int

    def files(self) -> list[tuple[int, Path]]:
        """Round and file, the newest first."""
        paths = self.folder.glob(f"{self.run}-{self.client}-*.safetensors")
        return sorted(((int(path.stem.rpartition("-")[2]), path) for path in paths), reverse=True)

    def before(self, round: int) -> dict[str, Tensor]:
        """The memory as it was when ``round`` began."""
        for written, path in self.files():
            if written < round:
                tensors: dict[str, Tensor] = load_file(path)
                return tensors
        return {}

    def write(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Save the memory after ``round``, and delete that of later rounds, which were undone."""
        for written, path in self.files():
            if written >= round:
                path.unlink()
        if not tensors:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / f"{self.run}-{self.client}-{round:06d}.safetensors"
        save_file({name: t.contiguous() for name, t in tensors.items()}, final.with_suffix(".tmp"))
        final.with_suffix(".tmp").replace(final)
        for _, path in self.files()[KEPT_ROUNDS:]:
            path.unlink()


@dataclass(frozen=True)
class TrialMemory:
    """The memories of all clients of a trial: its sites are on this machine and share a folder of the run.

    So the checkpoints of a trial hold them, another fleet can continue the run, and clients keep their memory when the
    number of sites changes.
    """

    run: Path
    _read: dict[Path, tuple[int, dict[str, Tensor]]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.run / "network" / "memory"

    def read(self) -> dict[int, dict[str, Tensor]]:
        """The newest memory of each client; unchanged files are not read again."""
        clients = {int(path.stem.split("-")[1]) for path in self.folder.glob(f"{run_id(self.run)}-*.safetensors")}
        newest = {client: Memory(self.folder, run_id(self.run), client).files()[0][1] for client in sorted(clients)}
        for path in self._read.keys() - newest.values():
            del self._read[path]
        return {client: self._load(path) for client, path in newest.items()}

    def _load(self, path: Path) -> dict[str, Tensor]:
        stamp = path.stat().st_mtime_ns
        if path not in self._read or self._read[path][0] != stamp:
            self._read[path] = (stamp, load_file(path))
        return self._read[path][1]

    def replace(self, memory: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Put the memories of a checkpoint in the place of all that is there."""
        for path in self.folder.glob(f"{run_id(self.run)}-*"):
            path.unlink()
        for client, tensors in memory.items():
            Memory(self.folder, run_id(self.run), client).write(0, tensors)


def run_id(folder: Path) -> str:
    """A unique name for the run, saved in its folder: sites store their memories under it."""
    path = folder / "network-id"
    if not path.exists():
        write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text().strip()
