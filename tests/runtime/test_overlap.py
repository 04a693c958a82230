"""While the server trains for the next round, the last round's model is being scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.runtime.tiny_run import Answer, play, tiny_parts
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.types import Fleet, Payload, Scores, Scoring
from fedfew.methods.fedmix import FedMix


@dataclass(frozen=True, eq=False)
class ToldScoring:
    """Notes when its result is waited for."""

    scoring: Scoring
    notes: list[str]

    def result(self) -> Scores:
        self.notes.append("scored")
        return self.scoring.result()


@dataclass(frozen=True, eq=False)
class TellingFleet:
    """Notes when scoring starts."""

    fleet: Fleet
    notes: list[str]

    def train(self, round: int, payloads: Mapping[int, Payload]) -> list[Answer]:
        return list(self.fleet.train(round, payloads))

    def score(self, omega: Vector, clients: Vector | None = None) -> ToldScoring:
        self.notes.append("scoring")
        return ToldScoring(self.fleet.score(omega, clients), self.notes)

    def memory(self) -> dict[int, dict[str, Tensor]]:
        return self.fleet.memory()

    def remember(self, memory: Mapping[int, dict[str, Tensor]]) -> None:
        self.fleet.remember(memory)

    def close(self) -> None:
        self.fleet.close()


def test_the_server_trains_between_the_start_of_scoring_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    train = FedMix.before_clients

    def told(*given: Any) -> Any:
        notes.append("server")
        return train(*given)

    monkeypatch.setattr(FedMix, "before_clients", told)
    parts, fleet = tiny_parts(rounds=3)
    play(parts, TellingFleet(fleet, notes), 3)
    assert notes == ["server", *["scoring", "server", "scored"] * 2, "scoring", "scored"]
