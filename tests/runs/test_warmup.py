"""Warm-ups that are kept and continued, and what clients keep between rounds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.crashes import flip
from tests.runtime.tiny_run import model_hash, records, tiny

from fedfew.core.errors import FedfewError
from fedfew.core.types import ServerState
from fedfew.methods.fedfew import FedFew
from fedfew.runs import checkpoints
from fedfew.runs.checkpoints import Checkpoints
from fedfew.runs.folder import CHECKPOINTS, WARMUP
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen, start
from fedfew.runtime.record import left_out, pace

PASSES = 6
SETTINGS: dict[str, dict[str, Any]] = {
    "fedfew": {"server__momentum": 0.9, "server__augment": "strong"},
    "server-only": {"server__optimizer": "adamw"},
    "pooled": {"server__momentum": 0.9},
    "cbafed": {"server__momentum": 0.9, "method__server_interval": 2},
    "semifl": {"method__momentum_lasts": True, "server__momentum": 0.9, "model__norm": "batch"},
}


@pytest.fixture(autouse=True)
def _kept_after_every_pass(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    yield


def unwanted(fault: FedfewError) -> None:
    pytest.fail(str(fault))


def stop_in_the_warmup(path: Path, after: int, **settings: Any) -> None:
    """Ctrl-C once so many passes are done."""

    def report(done: int, total: int) -> None:
        assert total == PASSES
        if done == after + 1:  # in the midst of the next one: this pass is not kept
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(start(tiny(method__warmup=PASSES, **settings), path).advance(report))


@pytest.mark.parametrize("method", SETTINGS)
def test_a_stopped_warmup_continues_with_the_same_bits(method: str, tmp_path: Path) -> None:
    settings = {"method__name": method, "rounds": 2} | SETTINGS[method]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    list(start(tiny(method__warmup=PASSES, **settings), whole).advance())
    stop_in_the_warmup(stopped, 4, **settings)
    halfway = Run.open(stopped)
    assert halfway.warmup is not None and (halfway.warmup.done, halfway.warmup.total) == (4, PASSES)
    seen: list[int] = []
    list(reopen(stopped, unwanted).advance(lambda done, total: seen.append(done)))
    assert seen == [4, 5, 6], "four passes are not repeated"
    assert model_hash(stopped) == model_hash(whole)
    assert records(stopped) == records(whole)
    assert not (stopped / CHECKPOINTS / WARMUP).exists()


def test_a_warmup_that_is_done_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the clients train in the first round."""
    settings = {"method__name": "fedfew", "method__warmup": PASSES}
    session = start(tiny(**settings), tmp_path / "run")
    rounds = session.advance()

    def fall(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FedFew, "after_clients", fall)
        next(rounds)
    assert session.saved == f"in the warm-up, after pass {PASSES} of {PASSES}"
    seen: list[int] = []
    list(reopen(tmp_path / "run", unwanted).advance(lambda done, total: seen.append(done)))
    assert seen == [PASSES]


def test_a_damaged_warmup_is_reported_and_begins_anew(tmp_path: Path) -> None:
    settings = {"method__name": "fedfew"}
    stop_in_the_warmup(tmp_path / "run", 3, **settings)
    list(start(tiny(method__warmup=PASSES, **settings), tmp_path / "whole").advance())
    file = tmp_path / "run" / CHECKPOINTS / WARMUP
    flip(file, 8 * (file.stat().st_size - 5))
    told: list[FedfewError] = []
    session = reopen(tmp_path / "run", told.append)
    assert [(fault.code, Path(fault.where).name) for fault in told] == [("E309", WARMUP)]
    assert told[0].message == "was damaged; the warm-up starts again"
    list(session.advance())
    assert model_hash(tmp_path / "run") == model_hash(tmp_path / "whole")


def test_its_seconds_are_no_round_s(tmp_path: Path) -> None:
    """Counted once and apart, over both processes; the time left is that of rounds."""
    stop_in_the_warmup(tmp_path / "run", 3, method__name="fedfew")
    before = Run.open(tmp_path / "run").warmup
    assert before is not None
    list(reopen(tmp_path / "run", unwanted).advance())
    first, second = Run.open(tmp_path / "run").records
    assert first["seconds"]["warmup"] > before.seconds > 0 and "warmup" not in second["seconds"]
    assert pace(first) == pytest.approx(sum(first["seconds"].values()) - first["seconds"]["warmup"])
    assert min(first["seconds"].values()) >= 0


def test_short_warmups_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 60.0)
    session = start(tiny(method__name="fedfew", method__warmup=2), tmp_path / "run")
    next(session.advance())
    assert Run.open(tmp_path / "run").warmup is None


def test_it_is_saved_every_few_seconds_and_at_the_end_and_its_seconds_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, every, seen = [100.0], 4.0, list[tuple[int, int]]()
    monkeypatch.setattr(checkpoints, "EVERY", every)
    monkeypatch.setattr(checkpoints, "perf_counter", lambda: now[0])
    weights, rng = {"w": torch.zeros(2)}, torch.Generator().manual_seed(3)
    file = tmp_path / WARMUP

    def go_on(warmup: checkpoints.Warmup, seconds: float, done: int) -> bool:
        """Whether the pass was saved."""
        before = file.read_bytes() if file.exists() else b""
        now[0] += seconds
        weights["w"] += 1
        warmup.passed(done, 5, weights, rng)
        return before != (file.read_bytes() if file.exists() else b"")

    first = checkpoints.Warmup.open(tmp_path, unwanted)
    assert first.begin(weights, rng) == 0 and first.take() == (0.0, 0.0)
    assert not go_on(first, 2.5, 1) and go_on(first, 2.5, 2) and not go_on(first, 2.5, 3)

    second = checkpoints.Warmup.open(tmp_path, unwanted)
    second.report = lambda done, total: seen.append((done, total))
    weights["w"].zero_()
    assert second.begin(weights, rng) == 2 and seen == [(2, 5)] and weights["w"].tolist() == [2.0, 2.0]
    assert not go_on(second, 2.0, 3) and go_on(second, 2.0, 4), "exactly as long"
    assert go_on(second, 0.5, 5), "the end of a long one is saved"
    assert second.take() == (4.5, 9.5) and second.take() == (0.0, 0.0)
    other = checkpoints.Warmup.open(tmp_path, unwanted)
    assert other.begin(weights, torch.Generator().manual_seed(4)) == 0, "of another round or seed"


TABLE: dict[str, Any] = {
    "rounds": 3,
    "clients": 4,
    "participation": 0.5,
    "labels": 20,
    "dataset": {"name": "mini-mnist", "validation": 10, "test": 40, "unlabeled": 80},
    "model": {"name": "cnn", "width": 4, "norm": "batch"},
    "method": {"name": "fedbn"},
    "objective": {"name": "temporal-ensembling", "ramp": 0.0},
    "compression": {"kind": "ternary"},
    "server": {"batch": 10, "lr": 0.05},
    "client": {"batch": 8, "lr": 0.05, "epochs": 2},
    "fleet": {"kind": "inline"},
}


def sha(run: Run) -> str:
    return str(run.summary["model_sha256"])


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Experiment.load(TABLE).run(tmp_path_factory.mktemp("memory") / "inline")


def test_on_a_pool_the_bits_are_the_same(inline: Run, tmp_path: Path) -> None:
    pool = Experiment.load(TABLE, {"fleet.kind": "pool", "fleet.workers": 2}).run(tmp_path / "pool")
    assert sha(pool) == sha(inline)


def test_a_run_stopped_in_the_middle_goes_on_with_the_same_memory(inline: Run, tmp_path: Path) -> None:
    rounds = Experiment.load(TABLE).rounds(tmp_path / "stopped")
    next(rounds)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    session = reopen(tmp_path / "stopped", lambda fault: None)
    kept = {name for memory in session.memory.values() for name in memory}
    assert kept == {"norm.omega", "ensemble", "visits", "residual.psi"}
    assert len(list(session.advance())) == 1
    assert sha(Run(session.folder)) == sha(inline)


def test_forgetting_would_be_noticed(inline: Run, tmp_path: Path) -> None:
    """The other side of the test above: without feedback the model is another one."""
    other = Experiment.load(TABLE, {"compression.feedback": False}).run(tmp_path / "other")
    assert sha(other) != sha(inline)


def test_what_stays_does_not_travel(inline: Run) -> None:
    for record in inline.rounds:
        assert left_out(record) == []
        assert record["bytes_up"] < record["bytes_down"] / 5


def test_the_warmup_s_file_goes_with_the_first_round(tmp_path: Path) -> None:
    store, state = Checkpoints(tmp_path), ServerState(0, torch.zeros(3), torch.zeros(3))
    assert store.last_round() == -1
    for round, there in ((0, True), (1, False)):
        if there:
            (tmp_path / WARMUP).write_bytes(b"x")
        store.commit(round, store.write_state(replace(state, round=round), {}), {})
        assert (tmp_path / WARMUP).exists() == there and store.last_round() == round
    (tmp_path / WARMUP).mkdir()  # cannot be unlinked
    store.commit(2, store.write_state(replace(state, round=2), {}), {})
    assert store.last_round() == 2
