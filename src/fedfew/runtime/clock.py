"""Where a round's time goes, by phase."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    """Adds up seconds under the name of a phase until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + perf_counter() - start

    def take(self, *phases: str) -> dict[str, float]:
        """The seconds of these phases, which start again at zero."""
        return {phase: round(self._seconds.pop(phase, 0.0), 4) for phase in phases}
