"""A clock that jumps by a day at every look changes nothing about a run: durations come from another clock."""

import itertools
import time
from pathlib import Path

import pytest
from tests.runs.crashes import resume
from tests.runtime.tiny_run import model_hash, records, tiny

from fedfew.runs.run import Run
from fedfew.runs.session import start

DAY = 86_400.0


def test_a_run_whose_clock_jumps_by_a_day(undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps, real = itertools.cycle((DAY, -DAY, 0.0)), time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    folder = tmp_path / "run"
    rounds = start(tiny(rounds=3), folder).advance()
    next(rounds)
    rounds.close()
    run, reported = resume(folder)
    assert reported == []
    assert model_hash(run) == model_hash(undisturbed)
    assert records(run) == records(undisturbed)
    lines = [record["seconds"] for record in run.rounds]
    assert all(0 <= seconds < DAY / 2 for line in lines for seconds in line.values())
