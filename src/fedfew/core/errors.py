"""Errors a person can act on: a code, the place, what is wrong and what to do; errors.toml explains every code."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources


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
    """A fault with a code; the text names place, value and remedy, so no traceback is needed to understand it."""

    def __init__(self, code: str, place: str, what: str, remedy: str | None = None) -> None:
        self.code, self.place, self.what = code, place, what
        self.remedy = CODES[code].remedy if remedy is None else remedy
        stop = "" if what.endswith((".", "?", "!")) else "."
        super().__init__(f"{code} {place}: {what}" + (f"{stop} {self.remedy}" if self.remedy else ""))


class ConfigErrors(FedfewError):  # noqa: N818 - it is several
    """All errors of a config at once."""

    def __init__(self, errors: Sequence[FedfewError]) -> None:
        first = errors[0]
        super().__init__(first.code, first.place, first.what, first.remedy)
        self.errors = list(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
