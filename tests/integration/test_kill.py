"""kill -9 and resume, once at any moment and once inside a checkpoint; ``make faults`` does fifty."""

from pathlib import Path

import pytest
from benchmarks.reliability.kill9 import attack
from tests.interface.subprocess_runs import LASTING


def test_a_killed_run_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    """Killed once, inside a checkpoint's write; `make faults` kills at fifty random moments."""
    short = LASTING | {"rounds": 10, "fleet": {"kind": "pool", "workers": 1}}
    for attempt in range(4):  # on a busy machine the write may be over before the kill
        (folder := tmp_path / str(attempt)).mkdir()
        tally = attack(folder, kills=1, inside=1, seed=4 + attempt, document=short)
        assert tally.resumed == tally.kills == 1
        assert tally.rounds_lost == 0
        assert tally.same_hash
        assert tally.orphans == 0
        if tally.inside:
            return
    pytest.fail("no kill met a write")
