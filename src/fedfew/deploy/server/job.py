"""What the ServerApp of a network is to do, given by its supervisor; the job's folder says how it ended."""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked, write_atomically

_VARIABLE = "FEDFEW_JOB"
_JOB, _END = "job.json", "end.json"
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

    def prepare(self) -> None:
        """Write it to its folder, where the next ServerApp finds it; the end of an earlier job is removed."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        Path(self.folder, _END).unlink(missing_ok=True)
        write_atomically(Path(self.folder, _JOB), json.dumps(asdict(self)).encode())

    @staticmethod
    def environment(folder: Path) -> dict[str, str]:
        """The environment of ServerApps whose jobs are in a folder, one after the other."""
        return {_VARIABLE: str(folder)}

    @staticmethod
    def received() -> "Job":
        """The job of this process."""
        return Job.at(Path(os.environ[_VARIABLE]))

    @staticmethod
    def at(folder: Path) -> "Job":
        """The present job of a folder, or the last one; OSError if there was none."""
        return Job(**json.loads((folder / _JOB).read_bytes()))

    def begin(self, stack: contextlib.ExitStack) -> bool:
        """Hold the job's lock; False if another ServerApp does. The system releases it however this process ends."""
        for _ in range(_TRIES):  # the supervisor holds it for a moment whenever it looks
            with contextlib.suppress(FedfewError):
                stack.enter_context(locked(Path(self.folder)))
                return True
            sleep(0.2)
        return False

    def is_at_work(self) -> bool:
        """Whether a ServerApp works on it."""
        try:
            with locked(Path(self.folder)):
                return False
        except FedfewError:
            return True

    def end(self, fault: FedfewError | None = None, traceback: str = "") -> None:
        """Tell the supervisor why the run cannot go on, or of a crash after which another try may succeed."""
        content = {name: getattr(fault, name) for name in ("code", "where", "message", "remedy")} if fault else {}
        write_atomically(Path(self.folder, _END), json.dumps(content or {"traceback": traceback}).encode())

    def ended(self) -> tuple[FedfewError | None, str]:
        """The fault for which the run cannot go on, or else the end of the last crash's traceback."""
        try:
            content = json.loads(Path(self.folder, _END).read_bytes())
        except OSError:
            return None, "it left no message"
        return (None, content["traceback"][-900:]) if "traceback" in content else (FedfewError(**content), "")
