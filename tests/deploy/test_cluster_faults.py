"""Real clusters under attack: every part killed, a site that stalls, and the run goes on without losing a round."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from threading import Timer

import httpx
import pytest
import torch
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from tests.deploy.cluster import Cluster, alive, cluster, descendants, eventually, named

from fedfew.deploy import flower_programs
from fedfew.deploy.processes import flower_environment, free_ports
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment
from fedfew.runtime.record import left_out

pytestmark = pytest.mark.slow


def kill(pids: list[int], signum: int = signal.SIGKILL) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, signum)


def settled(network: Cluster, more: int = 1, seconds: float = 300.0) -> None:
    """Some more rounds are committed."""
    assert network.round_done(len(network.rounds()) + more, seconds), network.words()


def test_every_part_is_killed_once_and_the_run_finishes(tmp_path: Path) -> None:
    with cluster(tmp_path, {"rounds": 14, "fleet.timeout": 150.0}) as network:
        server = network.server()
        a, b = network.site("a"), network.site("b")
        settled(network, 1)
        for word, owner in (
            ("fedfew.deploy.site.warm_site", a),
            ("fedfew.deploy.front.proxy", server),
            ("flwr-serverapp", server),
            ("flower-superexec", server),
            ("flower_programs superlink", server),
        ):
            kill(named(owner.pid, word))
            settled(network, 2)
            assert [record["round"] for record in network.rounds()] == list(range(1, len(network.rounds()) + 1))
        kill(named(b.pid, "flower_programs supernode"))
        settled(network, 1)
        below = descendants(server.pid)
        kill([server.pid])
        server.wait(30)
        assert eventually(lambda: not alive(below), 40), "orphans of a killed server"
        *done, _ = network.rounds()  # the last one may not have been committed yet, and is then done again
        again = network.server()
        assert again.wait(400) == 0, network.words()
        assert network.rounds()[: len(done)] == done
        assert again.result()["rounds"] == 14
        assert bool(torch.isfinite(Run.open(network.run).network().vector).all())


def test_a_run_killed_in_every_round_ends_with_the_model_of_an_undisturbed_one(tmp_path: Path) -> None:
    """The whole trial, kill -9, resumed again and again: same bits as inline."""
    from tests.deploy.conftest import TINY

    changes = TINY | {"participation": 1.0, "compression.kind": "top-k"}
    expected = Experiment.load("quick", changes).run(tmp_path / "inline").summary["model_sha256"]
    here = Cluster(tmp_path, plan=None)  # type: ignore[arg-type]
    settings = [f"--set={key}={value!r}" for key, value in changes.items() if key != "fleet.kind"]
    run, first = tmp_path / "run", ["deploy", "local", "quick", "--sites", "2", *settings]
    command = [*first, "--json", "--out", str(run)]
    for done in (1, 2):
        trial = here.start(*command)
        try:
            lines = lambda: (run / "rounds.jsonl").read_text().count("\n") if (run / "rounds.jsonl").exists() else 0  # noqa: E731
            assert eventually(lambda: lines() >= done, 200), trial.errors()  # noqa: B023
            below = descendants(trial.pid)
            trial.process.kill()
            trial.wait(10)
            assert eventually(lambda: not alive(below), 40)  # noqa: B023
        finally:
            trial.end()
        command = ["resume", str(run), "--json"]
    last = here.start(*command)
    try:
        assert last.wait(300) == 0, last.errors()
    finally:
        last.end()
    assert last.result()["model_sha256"] == expected


def test_a_site_that_stalls_misses_its_round_and_its_late_answer_is_told(tmp_path: Path) -> None:
    with cluster(tmp_path, {"rounds": 6, "fleet.timeout": 60.0, "fleet.min_clients": 1}) as network:
        server = network.server()
        network.site("a")
        b = network.site("b")
        settled(network, 1)
        stalled = named(b.pid, "fedfew.deploy.site.warm_site")
        kill(stalled, signal.SIGSTOP)
        settled(network, 1)
        kill(stalled, signal.SIGCONT)
        assert server.wait(400) == 0, network.words()
        records = network.rounds()
        missed = [fault["code"] for record in records for fault in left_out(record)]
        assert "E410" in missed and set(missed) <= {"E410"}
        assert all(left_out(record) == [] or left_out(record)[0]["client"] == 1 for record in records)
        # it is asked again after half of the time, so it may also answer twice
        assert {fault["code"] for record in records for fault in record["unused"]} <= {"E413", "E414"}
        assert not any(record["skipped"] for record in records)


def test_no_site_before_the_deadline_stops_with_a_name_and_leaves_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, {"fleet.wait": 1.0}) as network:
        server = network.server()
        assert eventually(lambda: descendants(server.pid), 60)
        assert server.wait(200) == 2
        assert "E503" in server.errors() and "offline: a, b" in server.errors().replace("\n", " ")
        assert "Traceback" not in server.errors()


def test_a_second_server_on_the_same_network_and_a_taken_port_are_refused(tmp_path: Path) -> None:
    with cluster(tmp_path, {"fleet.wait": 30.0}) as network:
        first = network.server()
        assert eventually(lambda: named(first.pid, "flower_programs superlink"), 120), network.words()
        second = network.server("--out", str(tmp_path / "other"))
        assert second.wait(120) == 2 and "E306" in second.errors(), second.errors()
        assert first.process.poll() is None


def test_a_run_moves_between_fleets_with_its_clients_memory(tmp_path: Path) -> None:
    """Inline, then two sites, then three, then inline again: the same bits as all inline."""
    from tests.deploy.conftest import TINY

    from fedfew.runs.session import reopen

    changes = TINY | {"rounds": 4, "participation": 1.0, "compression.kind": "top-k"}
    expected = Experiment.load("quick", changes).run(tmp_path / "inline").summary["model_sha256"]
    session = Experiment.load("quick", changes).start(tmp_path / "run")
    for fleet in (None, {"fleet.kind": "flower", "fleet.sites": 2}, {"fleet.kind": "flower", "fleet.sites": 3}):
        if fleet:
            session = reopen(tmp_path / "run", warn=print, overrides=fleet)
        rounds = session.advance()
        next(rounds)
        rounds.close()
    session = reopen(tmp_path / "run", warn=print, overrides={"fleet.kind": "inline"})
    list(session.advance())
    assert Run.open(tmp_path / "run").summary["model_sha256"] == expected


def reached(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5.0, trust_env=False).is_success
    return False


def test_the_superlink_waits_for_a_database_that_is_locked(tmp_path: Path) -> None:
    """Flower gives up after five seconds and answers with HTTP 500, which ends a ServerApp."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", flower_programs.__name__, flower_programs.SUPERLINK, "--insecure"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "process"]
    command += ["--database", str(tmp_path / "state.db"), "--disable-runtime-dependency-installation"]
    private, public = generate_key_pairs()
    process = subprocess.Popen(command, env=flower_environment(tmp_path), stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: reached(f"http://127.0.0.1:{port}/health"), 90)
        signs = (RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(private, public))
        client = FleetHttpClient.from_server_address(f"127.0.0.1:{port}", True, None, interceptors=signs)
        database = sqlite3.connect(tmp_path / "state.db", isolation_level=None, check_same_thread=False)
        database.execute("BEGIN IMMEDIATE")
        release = Timer(8.0, database.execute, ["ROLLBACK"])
        release.start()
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(public)))
        assert release.finished.is_set()
    finally:
        process.terminate()
        process.wait(30)
