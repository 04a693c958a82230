"""One measuring point: every round scores the model after the server's turn, and what the clients made before it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.tiny_run import CASES, PassingFleet, model_hash, play, records, tiny_parts, tiny_run

from fedfew.config.parts import Parts
from fedfew.core.evaluation import Evaluation, score
from fedfew.core.layout import Vector
from fedfew.core.types import Scores, Scoring, ServerState
from fedfew.interface.charts.run_charts import accuracy
from fedfew.methods import METHODS
from fedfew.methods.fedmix import FedMix
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds

ALONE = ("server-only", "pooled")


Rounds = list[tuple[ServerState, RoundRecord]]


def played(method: str, evaluation: Evaluation, **settings: Any) -> tuple[Parts, Rounds]:
    parts, fleet = tiny_parts(rounds=3, **({"model__norm": "group"} | CASES[method] | settings))
    start = parts.algorithm.start(parts.network.snapshot())
    rounds = run_rounds(parts.clients, parts.algorithm, parts.server, fleet, start, 3, evaluation=evaluation)
    return parts, list(rounds)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"fedmoments", "labels-names"}))  # which need a backbone
def test_every_method_says_what_its_clients_made(method: str) -> None:
    _, rounds = played(method, Evaluation())
    for _, record in rounds:
        assert record["accuracy"] is not None
        assert (record["accuracy_clients"] is None) == (method in ALONE)


def test_the_clients_mean_is_scored_on_the_test_images() -> None:
    parts, fleet = tiny_parts(method__name="fedavg", rounds=2)
    seen: list[torch.Tensor | None] = []

    class Watching(PassingFleet):
        def score(self, omega: torch.Tensor, clients: torch.Tensor | None = None) -> Any:
            seen.append(clients)
            return fleet.score(omega, clients)

    rounds = play(parts, Watching(fleet), 2)
    federation = parts.federation
    for clients, (_, record) in zip(seen, rounds, strict=True):
        assert clients is not None
        alone = score(parts.network, clients, federation.test, federation.validation)
        assert record["accuracy_clients"] == pytest.approx(alone.accuracy)


def test_where_the_server_trains_first_both_are_one_and_scored_once() -> None:
    _, rounds = played("fedavg", Evaluation(), method__order="before")
    assert all(record["accuracy"] == record["accuracy_clients"] for _, record in rounds)


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "server-only"])
def test_ema_evaluates_a_mean_over_the_rounds_and_changes_no_training(method: str) -> None:
    parts, plain = played(method, Evaluation())
    _, averaged = played(method, Evaluation(ema=0.8))
    mean = plain[0][0].omega
    for (one, _), (other, record) in zip(plain, averaged, strict=True):
        mean = 0.8 * mean + 0.2 * one.omega if one.round > 1 else mean
        assert torch.equal(one.omega, other.omega)
        torch.testing.assert_close(other.evaluated, mean)
        expected = score(parts.network, mean, parts.federation.test, parts.federation.validation)
        assert record["accuracy"] == pytest.approx(expected.accuracy)


def test_the_model_of_a_run_is_what_was_evaluated(tmp_path: Path) -> None:
    plain = tiny_run(tmp_path / "plain", rounds=2)
    averaged = tiny_run(tmp_path / "ema", rounds=2, evaluate__ema=0.9)
    assert records(plain)[0]["accuracy"] == records(averaged)[0]["accuracy"]
    assert model_hash(plain) != model_hash(averaged)


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "server-only"])
def test_scoring_every_second_round_changes_no_training(method: str) -> None:
    (_, rounds), (_, seldom) = (played(method, Evaluation(every=every)) for every in (1, 2))
    assert [torch.equal(a.omega, b.omega) for (a, _), (b, _) in zip(rounds, seldom, strict=True)] == [True] * 3
    scores = [(record["accuracy"], record["validation"]) for _, record in seldom]
    assert scores[0] == (None, None), "not scored"
    assert scores[1:] == [(record["accuracy"], record["validation"]) for _, record in rounds[1:]]


def test_a_run_scored_every_second_round_is_read_like_any_other(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", rounds=5, evaluate__every=2)
    scored = [r["round"] for r in run.records if r["accuracy"] is not None]
    assert scored == [2, 4, 5], "after every second round and after the last"
    cut = run.with_(records=run.records[:3], finished=False)
    assert cut.accuracy() == run.records[1]["accuracy"], "the last one known"
    drawn = accuracy(run).series
    assert [s.x for s in drawn] == [[2.0, 4.0, 5.0]] * 3, "test, validation, and what the clients made"
    assert list(drawn[2].y) == [r["accuracy_clients"] for r in run.records if r["round"] in (2, 4, 5)]


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
