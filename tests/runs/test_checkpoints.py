"""Checkpoints: a run that stops between any two file operations, or has a bit flipped, ends as if nothing had been."""

import errno
import random
import resource
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from tests.runs.crashes import Crash, copy_of, disk, files_of, flip, quiet, resume
from tests.runtime.tiny_run import model_hash, records, tiny

from fedfew.core.errors import FedfewError
from fedfew.core.types import ServerState
from fedfew.runs import checkpoints
from fedfew.runs.checkpoints import Checkpoints
from fedfew.runs.journal import EMPTY
from fedfew.runs.run import Run
from fedfew.runs.session import reopen, start


def same(run: Run, undisturbed: Run) -> bool:
    """Whether nobody could tell that something happened."""
    whole = sorted(p.name for p in (run.path / "checkpoints").iterdir())
    return (
        model_hash(run) == model_hash(undisturbed)
        and records(run) == records(undisturbed)
        and (run.path / "checkpoints" / "rounds.jsonl").read_bytes() == (run.path / "rounds.jsonl").read_bytes()
        and whole == sorted(p.name for p in (undisturbed.path / "checkpoints").iterdir())
    )


def operations_of(folder: Path) -> int:
    """How many file operations the rest of a run takes."""
    session = reopen(copy_of(folder, "counted"), quiet)
    with disk() as watched:
        list(session.advance())
    return watched.done


def test_a_run_continues_after_every_prefix_of_the_file_operations(stopped: Path, undisturbed: Run) -> None:
    total = operations_of(stopped)
    assert total > 12  # a round's checkpoint, the model and the summary
    for done in range(total):
        folder = copy_of(stopped, "crashed")
        session = reopen(folder, quiet)
        with disk(stop_at=done), pytest.raises(Crash):
            list(session.advance())
        run, told = resume(folder)
        assert told == [], f"after {done} operations"
        assert same(run, undisturbed), f"after {done} operations"
        assert list(run.path.rglob("*.tmp")) == []


@pytest.fixture(scope="module")
def with_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after two of its three rounds; FedMatch keeps a model of each client, in files of its own."""
    folder = tmp_path_factory.mktemp("parts") / "stopped"
    config = tiny(rounds=3, method__name="fedmatch", method__interval=1, clients=4, participation=0.5)
    rounds = start(config, folder).advance()
    next(rounds)
    next(rounds)
    rounds.close()
    return folder


def test_every_prefix_when_clients_have_files_of_their_own(with_parts: Path) -> None:
    """A round writes only the files that changed, twice."""
    whole, _ = resume(copy_of(with_parts, "whole"))
    parts = sorted(p.name for p in (with_parts / "checkpoints").glob("part-*"))
    assert len(parts) >= 8
    assert all(f"{name}.copy" in parts for name in parts if name.endswith(".safetensors"))
    total = operations_of(with_parts)
    assert total > 30
    for done in range(0, total, 5):
        folder = copy_of(with_parts, "crashed")
        session = reopen(folder, quiet)
        with disk(stop_at=done), pytest.raises(Crash):
            list(session.advance())
        run, told = resume(folder)
        assert told == []
        assert same(run, whole), f"after {done} operations"


def test_a_crash_while_the_folder_is_made_leaves_no_run(tmp_path: Path) -> None:
    with disk() as watched:
        start(tiny(), tmp_path / "counted")
    for done in range(watched.done - 1):  # the last one makes the finished folder durable
        with disk(stop_at=done), pytest.raises(Crash):
            start(tiny(), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("torn", [1, 100])
def test_a_line_torn_in_the_midst_is_dropped(stopped: Path, undisturbed: Run, torn: int) -> None:
    folder = copy_of(stopped, "torn")
    line = (undisturbed.path / "rounds.jsonl").read_bytes().splitlines()[2]
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(line[:torn])
    assert len(Run.open(folder).rounds) == 2
    run, told = resume(folder)
    assert told == []
    assert same(run, undisturbed)


def test_single_bit_flips_are_reported_and_repaired(stopped: Path, undisturbed: Run) -> None:
    """A bit of every file; ``benchmarks/reliability/bitflips.py`` does a thousand more."""
    rng = random.Random(5)
    finished = copy_of(undisturbed.path, "finished")
    kept = {stopped: files_of(stopped), finished: files_of(finished)}
    assert {p.name for p in kept[finished]} >= {
        "run.toml", "environment.json", "partition.npz", "classes.json", "rounds.jsonl", "model.safetensors",
        "summary.json", "round-000002.json", "round-000003.json", "state-000002.safetensors",
        "state-000003.safetensors",
    }  # fmt: skip
    flips = 0
    for origin, files in kept.items():
        for path in files:
            folder = copy_of(origin, "flipped")
            bit = rng.randrange(8 * path.stat().st_size)
            flip(folder / path.relative_to(origin), bit)
            run, faults = resume(folder)
            where = f"bit {bit} of {path.relative_to(origin)}"
            assert faults, f"{where} was not noticed"
            assert {fault.code for fault in faults} <= {"E303", "E309", "E311"}, where
            assert model_hash(run) == model_hash(undisturbed), where
            assert records(run) == records(undisturbed), where
            assert resume(folder)[1] == [], f"{where} was not repaired"
            flips += 1
    assert flips >= 20


@pytest.mark.parametrize(("damaged", "code", "left"), [(2, "E303", [2, 3]), (1, "E311", [3])])
def test_a_damaged_newest_checkpoint_costs_one_round_and_an_older_one_nothing(
    damaged: int, code: str, left: list[int], stopped: Path, undisturbed: Run
) -> None:
    folder = copy_of(stopped, "fallback")
    flip(folder / "checkpoints" / f"state-{damaged:06d}.safetensors", 40_000)
    told: list[FedfewError] = []
    session = reopen(folder, told.append)
    assert [(fault.code, Path(fault.where).name) for fault in told] == [(code, f"round-{damaged:06d}.json")]
    assert f"state-{damaged:06d}.safetensors" in told[0].message
    assert [record["round"] for record in session.advance()] == left
    assert same(Run.open(folder), undisturbed)


def test_two_damaged_checkpoints_are_the_end(stopped: Path) -> None:
    folder = copy_of(stopped, "lost")
    for number in (1, 2):
        flip(folder / "checkpoints" / f"state-{number:06d}.safetensors", 5_000)
    before = {path: path.read_bytes() for path in files_of(folder)}
    told: list[FedfewError] = []
    with pytest.raises(FedfewError, match=r"E304.*none of 2 checkpoints is intact"):
        reopen(folder, told.append)
    assert [fault.code for fault in told] == ["E303", "E303"]
    assert {path: path.read_bytes() for path in files_of(folder)} == before


def test_a_client_s_tensor_is_restored_from_its_copy(with_parts: Path) -> None:
    """Both checkpoints may need the same one, so falling back would not help."""
    whole, _ = resume(copy_of(with_parts, "whole"))
    for part in sorted((with_parts / "checkpoints").glob("part-*")):
        folder = copy_of(with_parts, "damaged")
        flip(folder / "checkpoints" / part.name, 8 * part.stat().st_size - 3)
        run, told = resume(folder)
        assert [(fault.code, Path(fault.where).name) for fault in told] == [("E309", part.name)]
        assert (told[0].message, told[0].remedy) == ("was damaged and has been restored from its copy", "")
        assert model_hash(run) == model_hash(whole)
        assert records(run) == records(whole)


@pytest.mark.parametrize(("code", "step"), [(errno.ENOSPC, 4), (errno.EROFS, 12), (errno.EIO, 12), (errno.EDQUOT, 12)])
def test_a_disk_that_fails_is_named_and_the_last_checkpoint_is_whole(
    code: int, step: int, stopped: Path, undisturbed: Run
) -> None:
    for done in range(0, operations_of(stopped) - 3, step):
        folder = copy_of(stopped, "full")
        session = reopen(folder, quiet)
        with disk(stop_at=done, fault=lambda: OSError(code, "the disk says no")):
            try:
                list(session.advance())
            except FedfewError as fault:
                assert (fault.code, fault.message) == ("E305", "the disk says no")
                assert str(folder) in fault.where
        run, told = resume(folder)
        assert told == []
        assert same(run, undisturbed)


def test_a_file_that_may_not_grow_is_named(tmp_path: Path, undisturbed: Run) -> None:
    """A real refusal by the system, as a full disk or a quota gives it."""
    session = start(tiny(rounds=3), tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))  # the state has some 9,000 bytes
    try:
        with pytest.raises(FedfewError, match=r"E305.*state-000001.*File too large"):
            list(session.advance())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "run").rglob("*.tmp")) == []
    run, told = resume(tmp_path / "run")
    assert told == []
    assert same(run, undisturbed)


def test_a_folder_that_vanishes_is_named(tmp_path: Path) -> None:
    session = start(tiny(rounds=3), tmp_path / "run")
    rounds = session.advance()
    next(rounds)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FedfewError, match="E305"):
        next(rounds)
    with pytest.raises(FedfewError, match=r"E302.*does not exist"):
        reopen(tmp_path / "run", quiet)


def test_a_disk_that_is_full_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    def full() -> OSError:
        return OSError(errno.ENOSPC, "no space left")

    with disk(stop_at=6, fault=full), pytest.raises(FedfewError, match=r"E305.*no space left"):
        start(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_checkpoints_are_kept_and_nothing_else(undisturbed: Run) -> None:
    assert sorted(path.name for path in (undisturbed.path / "checkpoints").iterdir()) == [
        "round-000002.json", "round-000003.json", "rounds.jsonl", "state-000002.safetensors",
        "state-000003.safetensors",
    ]  # fmt: skip


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = ServerState(
        round=7,
        omega=torch.randn(50),
        sigma=torch.randn(50),
        participation={11: 2, 3: 1},
        refused={5: 2, 4: 1},
        lengths={"psi": (0.25, 1e-9)},
        validation=(0.1, 1 / 3),
        ema=torch.randn(50),
        extra={"psi": torch.randn(50), "client/3": torch.randn(50), "seen": torch.arange(4, dtype=torch.int32)},
    )
    memory = {3: {"mean": torch.randn(4), "a/b": torch.ones(2, dtype=torch.int64)}}
    store = Checkpoints(tmp_path)
    store.commit(7, store.write_state(state, memory), {"rounds": EMPTY, "note": "ü"})
    found = Checkpoints(tmp_path).newest(lambda facts: facts["note"] == "ü", quiet)
    back = found.state
    assert (back.round, back.participation, back.validation) == (7, {3: 1, 11: 2}, (0.1, 1 / 3))
    assert back.ema is not None and state.ema is not None and torch.equal(back.ema, state.ema)
    assert (back.refused, back.lengths) == (state.refused, state.lengths)
    assert torch.equal(back.omega, state.omega)
    assert torch.equal(back.sigma, state.sigma)
    assert back.extra.keys() == state.extra.keys()
    assert all(torch.equal(back.extra[name], tensor) for name, tensor in state.extra.items())
    assert {k: list(kept) for k, kept in found.memory.items()} == {3: ["mean", "a/b"]}
    assert torch.equal(found.memory[3]["a/b"], memory[3]["a/b"])


def test_tensors_that_share_memory_are_all_written(tmp_path: Path) -> None:
    """At the start σ is ω; a file holds both."""
    omega, wide = torch.randn(6), torch.randn(2, 3)
    state = ServerState(0, omega, omega, extra={"turned": wide.T, "whole": wide})
    store = Checkpoints(tmp_path)
    store.commit(0, store.write_state(state, {}), {})
    back = Checkpoints(tmp_path).newest(lambda facts: True, quiet).state
    assert torch.equal(back.omega, omega) and torch.equal(back.sigma, omega)
    assert torch.equal(back.extra["turned"], wide.T) and torch.equal(back.extra["whole"], wide)


def test_a_client_s_tensor_that_did_not_change_is_not_even_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[dict[str, torch.Tensor]] = []

    def counted(tensors: dict[str, torch.Tensor]) -> bytes:
        looked.append(tensors)
        return save(tensors)

    monkeypatch.setattr(checkpoints, "save_tensors", counted)
    kept, store = {k: {"mean": torch.full((4,), float(k))} for k in range(3)}, Checkpoints(tmp_path)
    state = ServerState(1, torch.zeros(3), torch.zeros(3))
    first = store.write_state(state, kept)
    assert len(looked) == 3
    changed = kept | {1: {"mean": torch.full((4,), 9.0)}}
    second = store.write_state(state, changed)
    assert len(looked) == 4
    same = {key for key, file in first["parts"].items() if second["parts"][key] == file}
    assert same == {"memory/0/mean", "memory/2/mean"}
    (tmp_path / first["parts"]["memory/0/mean"][0]).unlink()
    store.write_state(state, changed)
    assert len(looked) == 5 and (tmp_path / first["parts"]["memory/0/mean"][0]).exists(), "one that is gone comes back"


def test_client_files_are_written_once_and_dropped_with_the_last_checkpoint_that_needs_them(tmp_path: Path) -> None:
    def at(round: int, *clients: int) -> ServerState:
        extra = {f"client/{k}": vectors[k] for k in clients}
        return ServerState(round, torch.zeros(3), torch.zeros(3), extra=extra)

    vectors = {k: torch.full((5,), float(k)) for k in range(4)}
    store = Checkpoints(tmp_path)
    counts = []
    for state in (at(1, 0), at(2, 0, 1), at(3, 1), at(4, 2), at(5, 2)):
        with disk() as watched:
            store.commit(state.round, store.write_state(state, {}), {})
        counts.append((watched.done, len(list(tmp_path.glob("part-*.safetensors")))))
    assert [parts for _, parts in counts] == [1, 2, 2, 2, 1]
    unchanged, changed = counts[2][0], counts[1][0]
    assert changed > unchanged  # round 3 wrote no client file, round 2 wrote one


def test_a_damaged_client_file_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    state = ServerState(1, torch.zeros(3), torch.zeros(3), extra={"client/0": torch.ones(5)})
    store = Checkpoints(tmp_path)
    store.commit(1, store.write_state(state, {}), {})
    for part in tmp_path.glob("part-*"):
        flip(part, 700)
    again = Checkpoints(tmp_path)
    again.commit(2, again.write_state(replace(state, round=2), {}), {})
    assert torch.equal(again.newest(lambda _: True, quiet).state.extra["client/0"], torch.ones(5))


def test_writing_checkpoints_keeps_no_memory_of_them(tmp_path: Path) -> None:
    """The safetensors writer for torch kept 6 kB for every length of the validation scores: 4 kB a round in all."""
    store, vector = Checkpoints(tmp_path), torch.zeros(4)

    def write(first: int, last: int) -> None:
        for round in range(first, last):
            store.write_state(ServerState(round, vector, vector, validation=(0.5,) * round), {})

    write(1, 5)
    tracemalloc.start()
    try:
        write(5, 10)
        before = tracemalloc.get_traced_memory()[0]
        write(10, 40)
        assert tracemalloc.get_traced_memory()[0] - before < 30 * 500
    finally:
        tracemalloc.stop()


def test_numbers_that_numpy_does_not_have_are_kept_too(tmp_path: Path) -> None:
    vector, half = torch.zeros(4), torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    store = Checkpoints(tmp_path)
    files = store.write_state(ServerState(1, vector, vector, extra={"half": half}), {})
    saved = load_file(tmp_path / files["state"][0])
    assert torch.equal(saved["extra/half"], half)
