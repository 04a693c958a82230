"""While the server trains for the next round, the last round's model is being scored."""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.runtime.tiny_run import PassingFleet, play, tiny_parts

from fedfew.core.layout import Vector
from fedfew.core.types import Scores, Scoring
from fedfew.methods.fedmix import FedMix


@dataclass(eq=False)
class TellingFleet(PassingFleet):
    """Notes when scoring starts, and when its result is waited for."""

    notes: list[str]

    def score(self, omega: Vector, clients: Vector | None = None) -> Scoring:
        self.notes.append("scoring")
        scoring = self.fleet.score(omega, clients)

        def result() -> Scores:
            self.notes.append("scored")
            return scoring()

        return result


def test_the_server_trains_between_the_start_of_scoring_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    train = FedMix.before_clients

    def noted(*arguments: Any) -> Any:
        notes.append("server")
        return train(*arguments)

    monkeypatch.setattr(FedMix, "before_clients", noted)
    parts, fleet = tiny_parts(rounds=3)
    play(parts, TellingFleet(fleet, notes), 3)
    assert notes == ["server", *["scoring", "server", "scored"] * 2, "scoring", "scored"]
