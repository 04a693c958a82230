"""What clients remember (norm layers, targets, encoding errors) lasts the same inline, on a pool and over a resume."""

from pathlib import Path
from typing import Any

import pytest

from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen
from fedfew.runtime.record import left_out

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
