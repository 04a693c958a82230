"""kill -9 and resume, once at any moment and once inside a checkpoint; ``make faults`` does fifty."""

from pathlib import Path

from tests.faults.kill9 import attack
from tests.interface.subprocess_runs import LASTING


def test_a_killed_run_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    """Killed once, inside a checkpoint's write; `make faults` kills at fifty random moments."""
    short = LASTING | {"rounds": 10, "fleet": {"kind": "pool", "workers": 1}}
    tally = attack(tmp_path, kills=1, inside=1, seed=4, document=short)
    assert tally.resumed == tally.kills == 1
    assert tally.inside >= 1
    assert tally.rounds_lost == 0
    assert tally.same_hash
    assert tally.orphans == 0
