"""What the ServerApp of a network is to do, given by its supervisor; the job's folder says how it ended."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked, write_atomically

_VARIABLE = "FEDFEW_JOB"
_FAULT, _TRACEBACK = "fault.json", "traceback.txt"
_TRIES = 25


@dataclass(frozen=True)
class Job:
    """A run to continue on a network; the folder's lock is held while a ServerApp works on it."""

    folder: str
    run: str
    network: str
    """The server's folder of the network."""
    fleet: dict[str, Any]
    """Settings of the fleet: they may differ from those with which the run was started."""
    allow_code: tuple[str, ...] = ()
    """Code outside fedfew that the run may use."""

    def prepare(self) -> dict[str, str]:
        """Make the folder, without the faults of earlier runs; the environment that passes the job on."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        for old in (_FAULT, _TRACEBACK):
            (folder / old).unlink(missing_ok=True)
        return {_VARIABLE: json.dumps(asdict(self))}

    @staticmethod
    def received() -> "Job":
        """The job of this process."""
        return Job(**json.loads(os.environ[_VARIABLE]))

    @contextlib.contextmanager
    def at_work(self) -> Iterator[bool]:
        """Hold the job's lock; False if another ServerApp does. The system releases it however this process ends."""
        with contextlib.ExitStack() as stack:
            for _ in range(_TRIES):  # the supervisor holds it for a moment whenever it looks
                try:
                    stack.enter_context(locked(Path(self.folder)))
                    break
                except FedfewError:
                    sleep(0.2)
            else:
                yield False
                return
            yield True

    def is_at_work(self) -> bool:
        """Whether a ServerApp works on it."""
        try:
            with locked(Path(self.folder)):
                return False
        except FedfewError:
            return True

    def fail(self, fault: FedfewError) -> None:
        """Tell the supervisor why the run cannot go on."""
        content = {"code": fault.code, "place": fault.place, "what": fault.what, "remedy": fault.remedy}
        write_atomically(Path(self.folder, _FAULT), json.dumps(content).encode())

    def fault(self) -> FedfewError | None:
        """Why the run cannot go on, if its ServerApp said so."""
        try:
            return FedfewError(**json.loads(Path(self.folder, _FAULT).read_bytes()))
        except OSError:
            return None

    def crash(self, text: str) -> None:
        """Leave the traceback of an unexpected error: another try may succeed."""
        Path(self.folder, _TRACEBACK).write_text(text, "utf-8")

    def last_crash(self) -> str:
        """The end of the last traceback."""
        path = Path(self.folder, _TRACEBACK)
        return path.read_text("utf-8").strip()[-900:] if path.exists() else "it left no message"
