"""A real server that stays up: two plans, a site that leaves and one that joins, and what monitoring sees."""

import json
from pathlib import Path

import httpx
import pytest
from tests.deploy.cluster import cluster, eventually, named

from fedfew.deploy import joining
from fedfew.deploy.audit import events
from fedfew.deploy.processes import free_ports
from fedfew.runs.run import Run

pytestmark = pytest.mark.slow


def test_two_plans_run_on_the_same_processes_while_sites_leave_and_join(tmp_path: Path) -> None:
    port, own = free_ports(2)
    with cluster(tmp_path, {"rounds": 2, "fleet.min_clients": 1}) as network:
        folder, config = network.plan.folder, str(network.plan.folder / "config.toml")
        server = network.start("deploy", "server", str(folder), "--serve", "--json", "--metrics", str(port))
        a, b = network.site("a", "--metrics", str(own)), network.site("b")
        ask = ["deploy", "submit", config, str(folder), "--json"]
        assert network.start(*ask, "--name", "first").wait() == 0, network.words()
        assert eventually((folder / "queue" / "0001-first.done").exists, 300), network.words()
        nodes = named(a.pid, "supernode") + named(a.pid, "warm_site") + named(server.pid, "superlink")
        b.end()
        joining.request(tmp_path / "sites" / "c")
        joining.accept(tmp_path / "sites" / "c", joining.admit(network.plan, tmp_path / "sites" / "c.request"))
        data = str(tmp_path / "b.npz")
        c = network.start("deploy", "client", str(tmp_path / "sites" / "c"), "--data", data)
        assert eventually(lambda: "online" in c.errors(), 120), network.words()
        assert network.start(*ask, "--name", "second", "--set", "seed=5").wait() == 0, network.words()
        assert eventually((folder / "queue" / "0002-second.done").exists, 300), network.words()
        assert nodes == named(a.pid, "supernode") + named(a.pid, "warm_site") + named(server.pid, "superlink")
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").json()["ok"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        finished = 'fedfew_audit_events{event="run finished"} 2.0'
        for line in ("fedfew_queue_length 0.0", finished, "fedfew_run_round 2.0"):
            assert line in text, text
        text = httpx.get(f"http://127.0.0.1:{own}/metrics").text
        assert "fedfew_site_online 1.0" in text and 'fedfew_process_up{process="node-a"} 1.0' in text
        assert text.count("fedfew_answers{plan=") == 2
    runs = [Run.open(folder / "runs" / name) for name in ("0001-first", "0002-second")]
    assert [sorted({k for r in run.records for k in r["cohort"]}) for run in runs] == [[0, 1], [0, 2]]
    results = [json.loads(line) for line in server.log.with_suffix(".out").read_text().splitlines()]
    assert [one["run"] for one in results] == [str(run.path) for run in runs] and all(one["verdict"] for one in results)
    assert [e["plan"] for e in events(folder) if e["event"] == "plan done"] == ["0001-first.toml", "0002-second.toml"]
