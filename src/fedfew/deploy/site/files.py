"""What a site keeps on its disk: clients' memories, the privacy account, the last noisy answer."""

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.deploy.site.answers import Answers
from fedfew.transforms import Privacy, epsilon

Noise = tuple[float, str, int]
"""z of an update, what it hides, and of how many images of one person."""
KEPT_ROUNDS = 3
"""Rounds for which a memory is kept, so that a server that falls back a round finds the one before it."""


@dataclass(frozen=True)
class Memory:
    """One client's memory in one run: a file for each round after which it changed."""

    folder: Path
    run: str
    client: int

    def files(self) -> list[tuple[int, Path]]:
        """Round and file, the newest first."""
        paths = self.folder.glob(f"{self.run}-{self.client}-*.safetensors")
        return sorted(((int(path.stem.rpartition("-")[2]), path) for path in paths), reverse=True)

    def before(self, round: int) -> dict[str, Tensor]:
        """The memory as it was when ``round`` began."""
        newest = next((path for written, path in self.files() if written < round), None)
        return load_file(newest) if newest else {}

    def write(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Save the memory after ``round``, and delete that of later rounds, which were undone."""
        for written, path in self.files():
            if written >= round:
                path.unlink()
        if tensors:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{self.run}-{self.client}-{round:06d}.safetensors"
            write_atomically(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
            for _, path in self.files()[KEPT_ROUNDS:]:
                path.unlink()


@dataclass(frozen=True)
class TrialMemory:
    """The memories of all clients of a trial: its sites are on this machine and share a folder of the run.

    So the checkpoints of a trial hold them, another fleet can continue the run, and clients keep their memory when the
    number of sites changes.
    """

    run: Path

    @property
    def folder(self) -> Path:
        return self.run / "network" / "memory"

    def read(self) -> dict[int, dict[str, Tensor]]:
        """The newest memory of each client."""
        clients = {int(path.stem.split("-")[1]) for path in self.folder.glob(f"{run_id(self.run)}-*.safetensors")}
        newest = {client: Memory(self.folder, run_id(self.run), client).files()[0][1] for client in sorted(clients)}
        return {client: load_file(path) for client, path in newest.items()}

    def replace(self, memory: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Put the memories of a checkpoint in the place of all that is there."""
        for path in self.folder.glob(f"{run_id(self.run)}-*"):
            path.unlink()
        for client, tensors in memory.items():
            Memory(self.folder, run_id(self.run), client).write(0, tensors)


@dataclass(frozen=True)
class SumSecrets:
    """A client's secrets between the exchanges of one secure sum: for this user only, and gone with the run."""

    folder: Path
    run: str
    client: int

    @property
    def path(self) -> Path:
        return self.folder / "sums" / f"{self.run}-{self.client}.safetensors"

    def read(self) -> dict[str, Tensor]:
        """Nothing, before a sum or if the file is damaged: then this sum goes on without the client."""
        try:
            return load_file(self.path)
        except (OSError, SafetensorError):
            return {}

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self.path.parent.iterdir():  # of a run that never said it was over
            if not other.name.lstrip(".").startswith(f"{self.run}-"):
                other.unlink(missing_ok=True)
        write_atomically(self.path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))

    @staticmethod
    def forget(folder: Path, run: str) -> None:
        """Delete those of a run that is over, and what a kill left of writing them."""
        for pattern in (f"{run}-*", f".{run}-*"):
            for path in (folder / "sums").glob(pattern):
                path.unlink()


def run_id(folder: Path) -> str:
    """A unique name for the run, saved in its folder: sites store their memories under it."""
    path = folder / "network-id"
    if not path.exists():
        write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text().strip()


@dataclass(frozen=True)
class PrivacyBudget:
    """privacy.json: the number of updates sent with each noise, and what it hides, over all runs and servers.

    ``most``: the largest total ε; 0: no limit. ``unit``: what this ε is of: all images of the site, of which noise for
    single images says nothing; or the images of one person, as many as any run has allowed, and noise for all images
    hides these too.
    """

    path: Path
    most: float = 0.0
    delta: float = 1e-5
    unit: str = "site"

    def charge(self, privacy: Privacy) -> None:
        """Count an update before it is made; raises E420, and counts nothing, if it would exceed the budget."""
        spent = self._read()
        group = privacy.group if privacy.unit == "image" else 1
        spent[privacy.noise if privacy.is_on else 0.0, privacy.unit, group] += 1
        if self.most and (would_be := self._epsilon(spent)) > self.most:
            reason = f"this update would bring ε to {would_be:.4g} at δ = {self.delta:g}; the budget is {self.most:g}"
            if would_be == inf and self.unit == "site" and any(unit == "image" for _, unit, _ in spent):
                reason += "; noise that hides single images does not count for all images of a site"
            raise FedfewError("E420", str(self.path), reason)
        updates = [{"noise": z, "unit": unit, "group": m, "count": n} for (z, unit, m), n in sorted(spent.items())]
        write_atomically(self.path, json.dumps({"updates": updates}, indent=1).encode())

    def _epsilon(self, spent: Mapping[Noise, int]) -> float:
        largest, counted = max(group for _, _, group in spent), Counter[float]()
        for (z, unit, _), count in spent.items():
            factor = 1.0 if unit == "site" else 2 / largest if self.unit == "image" else 0.0
            counted[factor * z] += count
        return epsilon(counted, self.delta)

    def _read(self) -> "Counter[Noise]":
        """An unreadable file is an error, not an empty account."""
        if not self.path.exists():
            return Counter()
        try:
            content = json.loads(self.path.read_bytes())
            before = content.get("unit", "site")  # of a version with one unit for all, and noise counted twice
            spent = Counter[Noise]()
            for row in content["updates"]:
                noise = float(row["noise"]) / (2 if "unit" not in row and before == "image" else 1)
                spent[noise, str(row.get("unit", before)), int(row.get("group", 1))] += int(row["count"])
            return spent
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedfewError("E420", str(self.path), f"cannot be read: {error}") from None


ANSWER = "answer.safetensors"


def given_once(folder: Path, message: str, make: Callable[[], Answers]) -> Answers:
    """Noisy answers: those that are stored in the folder for this message, or new ones, which are then stored."""
    if (stored := _stored_answers(folder / ANSWER, message)) is not None:
        return stored
    answers = make()
    if any("tensors" in answer for answer in answers):
        _store_answers(folder / ANSWER, message, answers)
    return answers


def _stored_answers(path: Path, message: str) -> Answers | None:
    """The last noisy answers, if they were to this message: it gets the same again, also after a restart.

    Fresh noise on the same change would let a server average the noise away, and would have to be charged again.
    ``message``: a hash of it and of the site's images.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["fedfew"])
            if about["message"] != message:
                return None
            answers: Answers = about["answers"]
            for answer in answers:
                if "tensors" in answer:
                    names = answer["tensors"]
                    answer["tensors"] = {name: file.get_tensor(f"{answer['client']}/{name}") for name in names}
            return answers
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):  # none yet, or damaged: charged again
        return None


def _store_answers(path: Path, message: str, answers: Answers) -> None:
    """Keep noisy answers in place of the ones before."""
    updates = [answer for answer in answers if "tensors" in answer]
    tensors = {f"{one['client']}/{name}": t.contiguous() for one in updates for name, t in one["tensors"].items()}
    names = [one | {"tensors": list(one["tensors"])} if "tensors" in one else one for one in answers]
    about = json.dumps({"message": message, "answers": names})
    write_atomically(path, save(tensors, metadata={"fedfew": about}))
