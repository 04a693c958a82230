"""The pool of worker processes: what is shared is there once, and a worker that dies costs one update."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.test_gate import peak
from tests.runtime.tiny_run import eventually, gone, model_hash, open_files, tiny, tiny_parts
from torch import Tensor

from fedfew.config.parts import Parts, local_fleet
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.types import ClientUpdate, Missing, Scores
from fedfew.runs.session import Experiment
from fedfew.runtime.arena import Arena, shared_file
from fedfew.runtime.pool import PoolFleet, Worker

Answer = ClientUpdate | Missing
LONG = {"clients": 4, "participation": 1.0, "client__epochs": 8, "rounds": 9}


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Clients that train long enough to be hit in the midst of it."""
    return tiny_parts(**LONG, fleet__kind="inline")[0]


@pytest.fixture(scope="module")
def payloads(parts: Parts) -> dict[int, Payload]:
    state = parts.algorithm.start(parts.network.snapshot())
    return {k: parts.algorithm.broadcast(state, k) for k in range(4)}


@pytest.fixture(scope="module")
def expected(parts: Parts, payloads: dict[int, Payload]) -> dict[int, ClientUpdate]:
    """What the clients answer in round 0 if nothing happens to them."""
    torch.set_num_threads(1)
    return {a.client: a for a in local_fleet(parts).train(0, payloads) if isinstance(a, ClientUpdate)}


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolFleet]:
    _, fleet = tiny_parts(**LONG, fleet__kind="pool", fleet__devices="cpu:0, cpu:1")  # as if there were two GPUs
    assert isinstance(fleet, PoolFleet)
    with closing(fleet):
        yield fleet
        assert sorted(worker.device for worker in workers(fleet)) == ["cpu:0", "cpu:1"]  # replaced ones, too
        last = fleet.processes
        assert len(last) == 2
    assert fleet.processes == []
    assert gone(last)


def workers(pool: PoolFleet) -> list[Worker]:
    return pool._workers


def same(answer: Answer, expected: ClientUpdate) -> bool:
    if isinstance(answer, Missing):
        return False
    equal = all(torch.equal(answer.reply[name], tensor) for name, tensor in expected.reply.items())
    return equal and (answer.examples, answer.metrics) == (expected.examples, expected.metrics)


def train(pool: PoolFleet, payloads: Mapping[int, Payload]) -> dict[int, Answer]:
    answers = list(pool.train(0, payloads))
    assert len(answers) == len({answer.client for answer in answers})
    return {answer.client: answer for answer in answers}


def test_the_answers_are_those_of_the_inline_fleet(
    pool: PoolFleet, payloads: dict[int, Payload], expected: dict[int, ClientUpdate]
) -> None:
    answers = train(pool, payloads)
    assert all(same(answers[k], expected[k]) for k in range(4))


def test_images_are_in_memory_once_and_a_payload_is_written_once(
    pool: PoolFleet, parts: Parts, payloads: dict[int, Payload]
) -> None:
    ours = os.fstat(pool._images.descriptor)
    held = parts.federation
    pixels = held.samples.data.numel() + held.test.samples.data.numel() + held.validation.samples.data.numel()
    assert pixels <= ours.st_size < pixels + 16_384
    for pid in pool.processes:
        links = [path for path in Path(f"/proc/{pid}/fd").iterdir() if "memfd:fedfew" in str(path.readlink())]
        large = {path.stat().st_ino for path in links if path.stat().st_size >= pixels}
        assert large == {ours.st_ino}  # the very same file in every worker, and no other of that size
    vector = 4 * parts.network.layout.size
    assert set(payloads[0]) == {"omega", "sigma", "lr"}
    # ω is σ in the first round: one vector for four clients and both names, and each client's own number
    assert os.fstat(pool._payloads.descriptor).st_size <= -(-(vector + 5 * 64) // 4096) * 4096


def test_the_longest_client_is_first(pool: PoolFleet, parts: Parts, payloads: dict[int, Payload]) -> None:
    longest = max(range(4), key=lambda k: len(parts.federation.partition.of(k)))
    answers = pool.train(0, payloads)
    first = next(answers)
    asked = {first.client} | {w.job["client"] for w in workers(pool) if w.job is not None}
    assert longest in asked
    list(answers)


def test_a_worker_killed_while_it_trains_costs_that_client_only(
    pool: PoolFleet, payloads: dict[int, Payload], expected: dict[int, ClientUpdate]
) -> None:
    before = set(pool.processes)
    struck: list[int] = []

    def strike() -> None:
        def training() -> bool:
            return any(w.job is not None and w.job["kind"] == "train" and w.ready for w in workers(pool))

        if eventually(training):
            victim = next(w for w in workers(pool) if w.job is not None)
            struck.append(victim.job["client"] if victim.job is not None else -1)
            victim.process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=strike)
    killer.start()
    answers = train(pool, payloads)
    killer.join()
    (victim,) = struck
    lost = answers[victim]
    assert isinstance(lost, Missing)
    assert lost.code == "E409"
    assert "signal 9" in lost.reason
    assert all(same(answers[k], expected[k]) for k in range(4) if k != victim)
    assert len(pool.processes) == 2
    assert len(before & set(pool.processes)) == 1
    healed = train(pool, payloads)
    assert all(same(healed[k], expected[k]) for k in range(4))


def test_a_payload_that_differs_by_client_is_written_for_each() -> None:
    arena = Arena(shared_file())
    shared, own = torch.arange(1000.0), [torch.full((1000,), float(k)) for k in range(3)]
    index = arena.write({str(k): {"shared": shared, "own": own[k]} for k in range(3)})
    assert len({index[str(k)]["shared"][0] for k in range(3)}) == 1
    assert len({index[str(k)]["own"][0] for k in range(3)}) == 3
    for k in range(3):
        back = arena.read(index[str(k)], copy=True)
        assert torch.equal(back["shared"], shared)
        assert torch.equal(back["own"], own[k])
    arena.close()
    arena.close()


def test_views_of_the_same_memory_are_told_apart() -> None:
    square = torch.arange(9.0).view(3, 3)
    tensors = {"a": square, "b": square.T, "c": square.view(torch.int32), "d": square[:0], "e": torch.tensor(True)}
    arena = Arena(shared_file())
    back = arena.read(arena.write({"all": tensors})["all"], copy=False)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in tensors.items())
    again = arena.read(arena.write({"all": {"more": torch.arange(100_000)}})["all"], copy=True)
    assert torch.equal(again["more"], torch.arange(100_000))
    arena.close()


def test_an_arena_gives_only_what_it_has() -> None:
    arena = Arena(shared_file())
    arena.write({"x": {"y": torch.zeros(10)}})
    for place in ([4096, [1], "float32"], [0, [1 << 40], "float32"], [0, [-1], "float32"], [0, [1], "load"]):
        with pytest.raises(ValueError, match=r"bytes|describe"):
            arena.read({"y": place}, copy=True)
    assert os.fstat(arena.descriptor).st_size == 4096
    arena.close()


def rogue(mode: str, workers: int = 1, timeout: float = 0.0, **more: Any) -> PoolFleet:
    """A pool whose workers misbehave."""
    data: dict[str, Tensor] = {"images": torch.zeros(1)}
    here = Scores(0.5, 1.0, None)
    hello = {"mode": mode} | more
    return PoolFleet(
        [""] * workers, hello, data, [1] * 9, lambda *_: here, "tests.runtime.rogue_worker", timeout, 1 << 20
    )  # fmt: skip


def test_a_worker_killed_while_idle_costs_nothing() -> None:
    with closing(rogue("honest", workers=2)) as pool:
        train(pool, {0: {}, 1: {}})
        victim = workers(pool)[0].process
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        answers = train(pool, {k: {} for k in range(4)})
        assert all(isinstance(answers[k], ClientUpdate) for k in range(4))


def test_a_worker_killed_while_it_scores_is_made_up_for() -> None:
    """A rogue worker says 0.25, this process 0.5."""
    omega = torch.zeros(3)
    with closing(rogue("honest", workers=2)) as pool:
        train(pool, {0: {}, 1: {}})  # so that both are ready
        assert pool.score(omega)().accuracy == 0.25
        for worker in workers(pool):
            worker.process.send_signal(signal.SIGSTOP)  # so that the job cannot be done before the blow
        scoring = pool.score(omega)
        (busy,) = (worker for worker in workers(pool) if worker.job is not None)
        busy.process.send_signal(signal.SIGKILL)
        assert scoring().accuracy == 0.5
        for worker in workers(pool):
            worker.process.send_signal(signal.SIGCONT)
        assert len(pool.processes) == 2


def test_workers_that_die_at_once_end_the_run_with_the_end_of_their_log() -> None:
    before = open_files()
    with closing(rogue("dies at once", workers=2)) as pool:
        pids = pool.processes
        with pytest.raises(FedfewError, match=r"E502.*status 3.*Cannot allocate memory"):
            list(pool.train(0, {0: {}, 1: {}}))
        pids += pool.processes
    assert gone(pids)
    assert open_files() == before


def test_workers_that_die_at_work_end_the_run_with_the_end_of_their_log() -> None:
    with (
        closing(rogue("dies at work")) as pool,
        pytest.raises(FedfewError, match=r"E502.*4 workers.*status 1.*killed in the midst"),
    ):
        list(pool.train(0, {k: {} for k in range(9)}))


def test_a_slow_client_is_missing_and_slowness_alone_never_ends_the_run() -> None:
    with closing(rogue("sleeps", timeout=0.3, sleepers=list(range(6)))) as pool:
        answers = {answer.client: answer for answer in pool.train(0, {k: {} for k in range(7)})}
        slow = [answers[k] for k in range(6)]
        assert [(a.code, a.reason) for a in slow if isinstance(a, Missing)] == [("E410", "no answer within 0.3 s")] * 6
        assert isinstance(answers[6], ClientUpdate)


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("claims too much", "E405"),
        ("claims what is not there", "E402"),
        ("claims an odd place", "E402"),
        ("talks nonsense", "E409"),
    ],
)
def test_nonsense_from_a_worker_costs_one_client(mode: str, code: str) -> None:
    with closing(rogue(mode)) as pool:
        peak()
        before = peak()
        answers = {answer.client: answer for answer in pool.train(0, {0: {}, 1: {}})}
        assert peak() - before < 64 << 20
    lost = answers[0]
    assert isinstance(lost, Missing)
    assert lost.code == code
    assert isinstance(answers[1], ClientUpdate)


def test_nothing_is_left_after_an_exception() -> None:
    shm = set(Path("/dev/shm").iterdir())
    before = open_files()

    def use() -> list[int]:
        with closing(rogue("sleeps", workers=3, sleepers=[0, 1, 2])) as pool:
            pids = pool.processes
            assert set(Path("/dev/shm").iterdir()) == shm
            raise RuntimeError(pids)

    with pytest.raises(RuntimeError) as caught:
        use()
    assert gone(caught.value.args[0])
    assert open_files() == before


def test_a_worker_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FedfewError, match=r"E502.*no worker process can be started"):
        rogue("sleeps")
    assert open_files() == before


def test_a_worker_ends_with_its_pool_even_while_it_still_imports() -> None:
    """The other end of its lifeline is closed before it has even begun."""
    watched, lifeline = os.pipe()
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "fedfew.config.worker",
            *[str(theirs.fileno())] * 5,
            str(watched),
        ],
        pass_fds=[theirs.fileno(), watched],
        stderr=subprocess.PIPE,
    )
    os.close(lifeline)
    _, imported = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"fedfew.runtime.channel" in imported
    assert b"fedfew.runtime.arena" not in imported
    for end in (ours, theirs):
        end.close()
    os.close(watched)


def test_virtual_clients_have_the_same_images_in_every_process(tmp_path: Path) -> None:
    virtual = {"clients": 1000, "participation": 0.003, "partition__kind": "virtual", "partition__per_client": 20}
    for kind in ("inline", "pool"):
        Experiment(tiny(**virtual, fleet__kind=kind, fleet__workers=1, rounds=1)).run(tmp_path / kind)
    assert model_hash(tmp_path / "inline") == model_hash(tmp_path / "pool")
