"""The same config gives the same bits: again, in another process, on any number of workers, in any order of arrival."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.reliability.kill9 import attack
from tests.interface.fedfew_command import LASTING
from tests.runtime.tiny_run import (
    TINY,
    AlteredFleet,
    Answer,
    RememberingFleet,
    model_hash,
    play,
    records,
    tiny,
    tiny_parts,
    tiny_run,
)

from fedfew.config.tree import settings_for
from fedfew.methods import METHODS
from fedfew.runs.run import Run
from fedfew.runs.session import reopen, start
from fedfew.runtime.record import left_out

SETTINGS: dict[str, dict[str, Any]] = {
    "ds-fl": {"method__subset": 20},
    "cbafed": {"method__highest": 0.1, "method__global_interval": 1},
    "fedmatch": {"method__interval": 1},
    "labels-names": {"model__name": "efficientnet-lite0", "model__size": 32},
    "fedmoments": {"model__name": "efficientnet-lite0", "model__size": 32, "method__survey": 8},
}

SPARSE: dict[str, Any] = {"method__name": "fedmatch", "method__interval": 1}


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("inline") / "run")


def test_another_seed_gives_other_bits(inline: Run, tmp_path: Path) -> None:
    assert model_hash(tiny_run(tmp_path / "seed", seed=2)) != model_hash(inline)
    other_data = tiny_run(tmp_path / "data", dataset__seed=2)
    assert model_hash(other_data) != model_hash(inline)
    assert records(other_data)[0]["cohort"] == records(inline)[0]["cohort"], "the cohort follows the model's seed"


def test_twenty_runs_of_one_config(tmp_path: Path) -> None:
    runs = [tiny_run(tmp_path / str(i), rounds=1, clients=4) for i in range(20)]
    assert len({model_hash(run) for run in runs}) == 1
    assert all(records(run) == records(runs[0]) for run in runs)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Sparse replies and another payload for each client."""
    return tiny_run(tmp_path_factory.mktemp("sparse") / "run", **SPARSE)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_bits_of_this_process(sparse: Run, workers: int, tmp_path: Path) -> None:
    """What clients keep, in test_client_memory."""
    run = tiny_run(tmp_path / "run", fleet__kind="pool", fleet__workers=workers, **SPARSE)
    assert model_hash(run) == model_hash(sparse)
    assert records(run) == records(sparse)


def test_a_hundred_orders_of_arrival() -> None:
    """With weights that differ by client, so that a sum in another order would show."""
    parts, fleet = tiny_parts(participation=0.5, aggregator__name="fedavg")
    remembering, first = RememberingFleet(fleet), parts.network.snapshot()
    expected = play(parts, remembering, 2)
    rng = random.Random(0)
    orders = set()

    def shuffled(_: int, answers: list[Answer]) -> list[Answer]:
        mixed = rng.sample(answers, len(answers))
        orders.add(tuple(answer.client for answer in mixed))
        return mixed

    for _ in range(100):
        parts.network.load(first)
        found = play(parts, AlteredFleet(remembering, shuffled), 2)
        for (state, record), (wanted, known) in zip(found, expected, strict=True):
            assert torch.equal(state.omega, wanted.omega)
            assert {**record, "seconds": 0} == {**known, "seconds": 0}
    assert len(orders) > 150


def test_another_process_with_other_surroundings(inline: Run, tmp_path: Path) -> None:
    """Global random state, the number of threads and the hash seed of the caller do not matter."""
    script = (
        "import json, random, sys, numpy, torch\n"
        "torch.manual_seed(99); numpy.random.seed(99); random.seed(99); torch.set_num_threads(2)\n"
        "from fedfew import Experiment\n"
        "run = Experiment.load(json.loads(sys.argv[1])).run(sys.argv[2])\n"
        "print(run.summary['model_sha256'], torch.get_num_threads())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(TINY), str(tmp_path / "run")],
        capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.stdout.split() == [model_hash(inline), "2"]
    assert records(tmp_path / "run") == records(inline)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits_again_and_after_a_stop(method: str, tmp_path: Path) -> None:
    """Whatever a method keeps from round to round is in the checkpoint."""
    small = {"rounds": 2, "clients": 6, "participation": 0.5, "dataset__open": 60}
    warmup = {"method__warmup": 1} if "warmup" in settings_for("method", method) else {}
    config = tiny(method__name=method, **small, **warmup, **SETTINGS.get(method, {}))
    whole = start(config, tmp_path / "whole")
    list(whole.advance())
    rounds = start(config, tmp_path / "stopped").advance()
    next(rounds)
    rounds.close()
    list(reopen(tmp_path / "stopped", lambda fault: pytest.fail(str(fault))).advance())
    assert model_hash(tmp_path / "stopped") == model_hash(tmp_path / "whole")
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    assert all(not record["skipped"] and left_out(record) == [] for record in records(tmp_path / "whole"))
    assert all(bool(torch.isfinite(p).all()) for p in Run.open(tmp_path / "whole").model().parameters())


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
