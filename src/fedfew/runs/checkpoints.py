"""Checkpoints: the whole server state after every round, hashed and written atomically; the two newest are kept.

A checkpoint is a manifest ``round-N.json`` that names its files with their SHA-256. The state is one safetensors file;
tensors that belong to single clients (helpers, client memory) are separate files, named by content, so that a round
writes only those that changed. Both checkpoints may need the same file, so each is stored twice.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, digest, file_digest, open_sealed, sealed_json, write_atomically
from fedfew.core.types import ServerState
from fedfew.runs.folder import WARMUP
from fedfew.runs.model_file import is_intact, sealed
from fedfew.runs.reading import Manifest, Warmed, fits, read_warmup

KEPT = 2
COPY = ".copy"
EVERY = 5.0
"""Seconds between two saves of a warm-up; a shorter one is repeated sooner than written."""
Memory = dict[int, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state to resume from, and the other facts in its manifest."""

    state: ServerState
    memory: Memory
    facts: dict[str, Any]
    damaged: tuple[Path, ...] = ()
    """Manifests that cannot be used."""
    broken: dict[Path, Path] = field(default_factory=dict)
    """Damaged files of client tensors, and the intact copy of each."""


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one run folder."""

    folder: Path
    _written: dict[str, tuple[Tensor, str, str]] = field(default_factory=dict)
    """Client tensors already on disk: key → (the tensor, file, hash); the same object is not hashed again."""

    def write_state(self, state: ServerState, memory: Memory) -> dict[str, Any]:
        """Write the tensors; they count only once a manifest names them."""
        small, parts = _flatten(state, memory)
        files = {}
        for key, tensor in parts.items():
            files[key] = self._write_part(key, tensor)
        content = _saved(_unshared(small))
        name = f"state-{state.round:06d}.safetensors"
        write_atomically(self.folder / name, content)
        return {"state": [name, digest(content)], "parts": files}

    def _write_part(self, key: str, tensor: Tensor) -> list[str]:
        known = self._written.get(key)
        if known is not None and known[0] is tensor and all(path.exists() for path in self._twins(known[1])):
            return [known[1], known[2]]
        content = save_tensors({"tensor": tensor.contiguous()})
        hash_ = digest(content)
        name = f"part-{hash_[:24]}.safetensors"
        for path in self._twins(name):
            if file_digest(path) != hash_:
                write_atomically(path, content)
        self._written[key] = (tensor, name, hash_)
        return [name, hash_]

    def _twins(self, name: str) -> tuple[Path, Path]:
        return self.folder / name, self.folder / f"{name}{COPY}"

    def commit(self, round: int, files: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Write the manifest: from this moment the round is done. Then delete all but the two newest checkpoints."""
        body = {"round": round, "files": dict(files), "facts": dict(facts)}
        write_atomically(self.folder / f"round-{round:06d}.json", sealed_json(body))
        if round and (self.folder / WARMUP).exists():
            with contextlib.suppress(OSError):
                (self.folder / WARMUP).unlink()
        self._sweep()

    def _sweep(self) -> None:
        manifests = self._manifests()
        needed = {WARMUP}
        for path in manifests[:KEPT]:
            body = _manifest(path)
            if body is None:
                return  # something is damaged: delete nothing
            needed |= {body["files"]["state"][0], *(name for name, _ in body["files"]["parts"].values())}
        tensors = (path for path in self.folder.glob("*.safetensors*") if path.name.removesuffix(COPY) not in needed)
        with contextlib.suppress(OSError):  # leftovers do no harm
            for path in (*manifests[KEPT:], *tensors):
                path.unlink(missing_ok=True)

    def _manifests(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("round-*.json"), reverse=True)

    def last_round(self) -> int:
        """The round of the newest manifest, by its file name; −1 if there is none."""
        manifests = self._manifests()
        return int(manifests[0].stem.removeprefix("round-")) if manifests else -1

    def newest(self, accept: Callable[[dict[str, Any]], bool], warn: Warn) -> Checkpoint:
        """The newest intact checkpoint whose facts are accepted; every damaged one is reported."""
        chosen: Checkpoint | None = None
        manifests, damaged = self._manifests(), []
        broken: dict[Path, Path] = {}
        for path in manifests:
            opened = self._open(path)
            if isinstance(opened, Checkpoint) and not accept(opened.facts):
                opened = "its facts are incomplete, or rounds.jsonl does not match it"
            if isinstance(opened, str):
                damaged.append(path)
                warn(FedfewError("E303" if chosen is None else "E311", str(path), opened))
                continue
            broken |= opened.broken
            chosen = chosen or opened
        if chosen is None:
            raise FedfewError("E304", str(self.folder), f"none of {len(manifests)} checkpoints is intact")
        return replace(chosen, damaged=tuple(damaged), broken=broken)

    def repair(self, checkpoint: Checkpoint, warn: Warn) -> None:
        """Remove what is unusable or no longer needed, and restore files of which only one of two copies is intact."""
        for path in checkpoint.damaged:
            with contextlib.suppress(OSError):
                path.unlink()
        for path, intact in checkpoint.broken.items():
            write_atomically(path, intact.read_bytes())
            warn(FedfewError("E309", str(path), "was damaged and has been restored from its copy", ""))
        self._sweep()

    def _open(self, path: Path) -> Checkpoint | str:
        body = _manifest(path)
        if body is None:
            return "the manifest is damaged"
        broken: dict[Path, Path] = {}
        try:
            name, hash_ = body["files"]["state"]
            tensors = _read(self.folder / name, hash_)
            parts = {key: self._part(name, hash_, broken) for key, (name, hash_) in body["files"]["parts"].items()}
            state, memory = _unflatten(body["round"], tensors, parts)
        except (OSError, ValueError) as error:
            return str(error)
        except KeyError as error:
            return f"{error} is missing in it"
        return Checkpoint(state, memory, body["facts"], broken=broken)

    def _part(self, name: str, hash_: str, broken: dict[Path, Path]) -> Tensor:
        """A client's tensor from the first intact one of its two files; a damaged one is noted."""
        first, second = self._twins(name)
        pairs = ((first, second), (second, first))
        broken |= {path: other for path, other in pairs if file_digest(path) != hash_}
        return _read(second if first in broken else first, hash_)["tensor"]


@dataclass(eq=False)
class Warmup:
    """The warm-up before the first round, pass by pass: reported, saved every few seconds, continued after a stop."""

    file: Path
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """What an earlier process saved, and in ``known`` how far it got."""
    known: Warmed | None = None
    report: Callable[[int, int], None] = lambda done, total: None
    """Called with the passes done and their number."""
    _times: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Seconds in this process and in all."""
    _looked: float = 0.0
    _kept: float = 0.0

    @staticmethod
    def open(folder: Path, warn: Warn) -> "Warmup":
        """The warm-up saved in the folder of checkpoints; a damaged file is reported and removed."""
        file = folder / WARMUP
        if not file.is_file():
            return Warmup(file)
        known = read_warmup(file) if is_intact(file) else None
        if known is None:
            warn(FedfewError("E309", str(file), "was damaged; the warm-up starts again", ""))
            file.unlink()
            return Warmup(file)
        return Warmup(file, load_tensors(file.read_bytes()), known)

    def begin(self, tensors: Mapping[str, Tensor], rng: torch.Generator) -> int:
        """Continue an earlier process's warm-up, if it trained for the same round from the same seed."""
        self._looked = self._kept = perf_counter()
        if self.known is None or self.known.stream != str(rng.initial_seed()):
            return 0
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(self.tensors[name])
        rng.set_state(self.tensors["rng"])
        self._times[1] += self.known.seconds
        self.report(self.known.done, self.known.total)
        return self.known.done

    def passed(self, done: int, total: int, tensors: Mapping[str, Tensor], rng: torch.Generator) -> None:
        now = perf_counter()
        self._times = [spent + now - self._looked for spent in self._times]
        self._looked = now
        self.report(done, total)
        if now - self._kept < EVERY and (done < total or self._times[0] < EVERY):
            return
        about = {"done": done, "total": total, "seconds": round(self._times[1], 3), "stream": str(rng.initial_seed())}
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        content = save_tensors(kept | {"rng": rng.get_state()}, metadata={"fedfew": json.dumps(about)})
        write_atomically(self.file, sealed(content))
        self._kept = perf_counter()

    def take(self) -> tuple[float, float]:
        here, in_all = self._times
        self._times = [0.0, 0.0]
        return here, in_all


def _manifest(path: Path) -> dict[str, Any] | None:
    """The content of a manifest, or None if it is damaged or lacks something that a resume needs."""
    body = open_sealed(path)
    return body if fits(Manifest, body) else None


def _read(path: Path, expected: str) -> dict[str, Tensor]:
    content = path.read_bytes()
    if digest(content) != expected:
        raise ValueError(f"{path.name} does not have the hash it was written with")
    tensors: dict[str, Tensor] = load_tensors(content)
    return tensors


def _flatten(state: ServerState, memory: Memory) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    clients = sorted(state.participation)
    small = {
        "omega": state.omega,
        "sigma": state.sigma,
        "clients": torch.tensor(clients, dtype=torch.int64),
        "counts": torch.tensor([state.participation[k] for k in clients], dtype=torch.int64),
        "validation": torch.tensor(state.validation, dtype=torch.float64),
    }
    small |= {} if state.ema is None else {"ema": state.ema}
    if state.refused:
        table = sorted(state.refused.items())
        small["refused"] = torch.tensor(table, dtype=torch.int64)
    small |= {f"lengths/{name}": torch.tensor(kept, dtype=torch.float64) for name, kept in state.lengths.items()}
    small |= {f"extra/{name}": t for name, t in state.extra.items() if "/" not in name}
    parts = {f"extra/{name}": t for name, t in state.extra.items() if "/" in name}
    parts |= {f"memory/{k}/{name}": t for k, kept in memory.items() for name, t in kept.items()}
    return small, parts


def _saved(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file, written through NumPy: the writer for torch keeps 6 kB for every new length it sees, and the
    validation scores have a new one each round."""
    if any(tensor.dtype is torch.bfloat16 for tensor in tensors.values()):  # NumPy has no bfloat16
        return bytes(save_tensors(tensors))
    return bytes(save_arrays({name: tensor.numpy() for name, tensor in tensors.items()}))


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each with its own memory: at the start σ is ω and ψ is what the wire has; a file needs both."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone(memory_format=torch.contiguous_format) if address in seen else tensor.contiguous()
        seen.add(address)
    return separate


def _unflatten(round: int, small: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> tuple[ServerState, Memory]:
    memory: Memory = {}
    for key, tensor in parts.items():
        if key.startswith("memory/"):
            _, client, name = key.split("/", 2)
            memory.setdefault(int(client), {})[name] = tensor
    everything = dict(small) | dict(parts)
    state = ServerState(
        round=round,
        omega=small["omega"],
        sigma=small["sigma"],
        participation=dict(zip(small["clients"].tolist(), small["counts"].tolist(), strict=True)),
        refused=dict(small["refused"].tolist()) if "refused" in small else {},
        lengths={
            key.removeprefix("lengths/"): tuple(t.tolist()) for key, t in small.items() if key.startswith("lengths/")
        },
        validation=tuple(small["validation"].tolist()),
        ema=small.get("ema"),
        extra={key.removeprefix("extra/"): t for key, t in everything.items() if key.startswith("extra/")},
    )
    return state, memory
