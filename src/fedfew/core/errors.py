"""Errors a person can act on: a code, where, what is wrong and what to do; errors.toml explains every code."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import PurePath
from traceback import extract_tb


@dataclass(frozen=True)
class Explanation:
    """What ``fedfew explain CODE`` says: the short name of the fault, its cause and its remedy."""

    title: str
    cause: str
    remedy: str


CODES = {
    code: Explanation(**text)
    for code, text in tomllib.loads((resources.files("fedfew.core") / "errors.toml").read_text("utf-8")).items()
}


class FedfewError(Exception):
    """A fault with a code; its text says where, what is wrong and what to do, so that it needs no traceback."""

    def __init__(self, code: str, where: str, message: str, remedy: str | None = None) -> None:
        self.code, self.where, self.message = code, where, message
        self.remedy = CODES[code].remedy if remedy is None else remedy
        stop = "" if message.endswith((".", "?", "!")) else "."
        super().__init__(f"{code} {where}: {message}" + (f"{stop} {self.remedy}" if self.remedy else ""))


class ConfigErrors(FedfewError):  # noqa: N818 - it is several
    """All errors of a config at once."""

    def __init__(self, errors: Sequence[FedfewError]) -> None:
        first = errors[0]
        super().__init__(first.code, first.where, first.message, first.remedy)
        self.errors = list(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class Refusal(StrEnum):
    """Why a client's answer is missing or does not count; the value is the code that the round's record has."""

    NAMES = "E401"
    SHAPE = "E402"
    TYPE = "E403"
    NOT_FINITE = "E404"
    TOO_LARGE = "E405"
    OUT_OF_BOUNDS = "E406"
    COUNT = "E407"
    FAILED = "E408"
    DIED = "E409"
    NO_ANSWER = "E410"
    DROPPED_OUT = "E411"
    INDICES = "E412"
    LATE = "E413"
    TWICE = "E414"
    OTHER_ROUND = "E415"
    UNREACHABLE = "E416"
    UNFIT_SITE = "E417"
    TOO_FEW = "E418"
    PAYLOAD = "E419"
    BUDGET = "E420"
    HARMFUL = "E421"
    SUM_REFUSED = "E422"
    NOT_AGREED = "E424"


NO_UPDATE = frozenset({
    Refusal.FAILED, Refusal.DIED, Refusal.NO_ANSWER, Refusal.DROPPED_OUT, Refusal.UNREACHABLE, Refusal.UNFIT_SITE,
    Refusal.TOO_FEW, Refusal.PAYLOAD, Refusal.BUDGET, Refusal.SUM_REFUSED, Refusal.NOT_AGREED,
})  # fmt: skip
"""Clients that sent no update, or none that was checked; any other reason is a refusal by the gate or the screen."""
UNUSED = frozenset({Refusal.LATE, Refusal.TWICE})
"""Answers that came too late or twice: they are recorded, but are not part of the round they came in."""
SHARED_CAUSE = frozenset({
    Refusal.NAMES, Refusal.SHAPE, Refusal.TYPE, Refusal.NOT_FINITE, Refusal.TOO_LARGE, Refusal.FAILED,
    Refusal.UNFIT_SITE, Refusal.PAYLOAD, Refusal.SUM_REFUSED,
})  # fmt: skip
"""Faults of a config or of code rather than of a client: if all clients of the first round share one, E512."""


def raised_at(error: BaseException) -> str:
    """An exception in words, with the file and line that raised it: of the code that was called, not of a library."""
    frames = [frame for frame in extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    frame = frames[-1] if frames else None
    where = f" ({PurePath(frame.filename).name}:{frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {error}{where}"
