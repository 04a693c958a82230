"""The life of a real network on loopback: sites that join with keys of their own, are revoked, and outlast a server."""

import json
import os
import shutil
from pathlib import Path

import httpx
import pytest
from tests.deploy.cluster import Cluster, cluster, eventually, named

import fedfew
from fedfew.deploy import joining
from fedfew.deploy.audit import events
from fedfew.deploy.plan import STATUS, open_server
from fedfew.deploy.processes import free_ports
from fedfew.deploy.site.agreement import asked_plans
from fedfew.deploy.site.ledger import verify
from fedfew.deploy.site.limits import LIMITS
from fedfew.deploy.versions import versions
from fedfew.runs.run import Run

pytestmark = pytest.mark.slow


def status(network: Cluster, name: str) -> str:
    path = network.folder / "sites" / name / STATUS
    return path.read_text() if path.exists() else ""


def test_a_site_joins_with_its_own_key_and_another_is_revoked_in_the_middle_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "anywhere"
    (here / "fedfew").mkdir(parents=True)  # Flower took it for an app
    monkeypatch.chdir(here)
    with cluster(tmp_path, {"rounds": 6}, sites=("a", "b", "c")) as network:
        joining.revoke(network.plan, "c")
        (tmp_path / "sites").mkdir()
        joining.request(tmp_path / "sites" / "d")
        admission = joining.admit(network.plan, tmp_path / "sites" / "d.request")
        joining.accept(tmp_path / "sites" / "d", admission)
        (tmp_path / "sites" / "d" / LIMITS).write_text('accept = "ask"\n')
        (tmp_path / "d.npz").write_bytes((tmp_path / "c.npz").read_bytes())
        server = network.server()
        sites = [network.site("a"), network.site("b")]
        folder, data = str(tmp_path / "sites" / "d"), str(tmp_path / "d.npz")
        sites.append(network.start("deploy", "client", folder, "--data", data))
        asked = eventually(lambda: asked_plans(tmp_path / "sites" / "d"))
        assert asked and not network.rounds(), network.words()
        assert network.start("deploy", "approve", folder, asked[0]["plan"][:12]).wait() == 0
        assert network.round_done(1), network.words()
        assert network.rounds()[0]["cohort"] == [0, 1, 3]
        rows = {row["site"]: row["state"] for row in joining.site_rows(open_server(network.plan.folder))}
        assert rows == {"a": "online", "b": "online", "c": "revoked", "d": "online"}
        joining.revoke(network.plan, "b")
        joining.renew(network.plan, 500)
        assert server.wait(300) == 0, network.words()
        assert 1 not in network.rounds()[-1]["cohort"], network.rounds()[-1]
        result = server.result()
        better = "baseline" if result["verdict"]["difference"]["mean"] < 0 else "run"
        assert "The sites' images" in result["verdict"]["sentence"] and result["recommended"] == result[better]
        refused = eventually(lambda: [e for e in events(network.plan.folder) if e["event"] == "refused"], 60)
        assert refused and refused[0]["address"] == "127.0.0.1"
    told = [event["event"] for event in events(network.plan.folder) if event["event"] not in ("refused", "answer")]
    said = [(e["site"], e["answer"]) for e in events(network.plan.folder) if e["event"] == "answer"]
    assert sorted(said) == [("a", "agreed"), ("b", "agreed"), ("d", "agreed"), ("d", "waiting")]
    assert told == ["revoked", "admitted", "run started", "revoked", "renewed", "run finished"]
    summary = verify(tmp_path / "sites" / "d")
    assert [line["decision"] for line in summary.decisions] == ["approved"]
    (run,) = (one for name, one in summary.runs.items() if one.tensors)
    assert len(run.rounds) >= 3 and run.received >= 4 and run.sent >= 4


def test_sites_continue_on_a_server_that_was_away_and_is_restored_from_a_backup(tmp_path: Path) -> None:
    with cluster(tmp_path, {"rounds": 40}) as network:
        server = network.server()
        for name in ("a", "b"):
            network.site(name)
        assert network.round_done(1), network.words()
        assert eventually(lambda: status(network, "a") == "online", 60)
        server.end()
        assert eventually(lambda: "cannot be reached" in status(network, "a"), 90), status(network, "a")
        before, backup = len(network.rounds()), tmp_path / "backup"
        shutil.copytree(network.plan.folder, backup, ignore=shutil.ignore_patterns("logs", "flower", "state.db*"))
        shutil.rmtree(network.plan.folder)
        backup.rename(network.plan.folder)
        network.server()
        assert network.round_done(before + 2), network.words()
        assert eventually(lambda: status(network, "a") == "online" and status(network, "b") == "online", 60)
        log = (network.folder / "sites" / "a" / "logs" / "node-a.log").read_text()
        assert "\x1b[" not in log and all(json.loads(line)["time"] for line in log.splitlines())
        assert json.loads((network.plan.folder / "audit.jsonl").read_text().splitlines()[0])["event"] == "run started"
        assert named(server.pid, "superlink") == []


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


def release(folder: Path, number: str) -> dict[str, str]:
    """Environment of a machine where another release is installed: other files, and so another build."""
    folder.mkdir()
    root = Path(fedfew.__file__).parent
    shutil.copytree(root, folder / "fedfew", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "fedfew" / "core" / "errors.py").open("a") as file:
        file.write(f"\n# {folder.name}\n")
    about = folder / f"fedfew-{number}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fedfew\nVersion: {number}\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def missing(network: Cluster) -> list[set[str]]:
    """The codes of each site, in the rounds so far."""
    faults = [fault for record in network.rounds() for fault in record["missing"]]
    return [{fault["code"] for fault in faults if fault["client"] == k} for k in range(len(network.plan.sites))]


def test_sites_of_a_fitting_release_train_on_and_the_server_is_upgraded_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Site a has the server's build, b the next release, c another build of the same release, d another minor one."""
    major, minor, last = map(int, versions()["fedfew"].split("."))
    newer = release(tmp_path / "newer", f"{major}.{minor}.{last + 1}")
    others = {"c": release(tmp_path / "commit", f"{major}.{minor}.{last}")}
    others["d"] = release(tmp_path / "minor", f"{major}.{minor + 1}.0")
    with cluster(tmp_path, {"rounds": 30, "fleet.min_clients": 4}, sites=("a", "b", "c", "d")) as network:
        server = network.server()
        network.site("a")
        network.site("b", environment=newer)
        for name, environment in others.items():
            network.site(name, environment=environment)
        assert network.round_done(2), network.words()
        assert missing(network) == [set(), set(), {"E417"}, {"E417"}], network.rounds()
        reason = network.rounds()[0]["missing"][0]["reason"]
        assert reason == "the site runs another version of fedfew or torch"
        log = (tmp_path / "sites" / "c" / "logs" / "site-c.log").read_text()
        assert f"both have fedfew {versions()['fedfew']}, but build {versions()['build']} there" in log, log
        doctor = network.start("deploy", "doctor", "client", str(tmp_path / "sites" / "d"), environment=others["d"])
        assert doctor.wait() == 2 and "the other side has fedfew" in doctor.log.with_suffix(".out").read_text()
        rows = {row["site"]: row for row in joining.site_rows(open_server(network.plan.folder))}
        assert f"fedfew {major}.{minor}.{last + 1}," in rows["b"]["versions"], rows["b"]
        server.end()
        done = len(network.rounds())
        refused = network.server(environment=newer)
        assert refused.wait(120) == 2 and "E308" in refused.errors(), refused.errors()
        network.server("--anyway", environment=newer)
        assert eventually(lambda: len(network.rounds()) >= done + 2, 240), network.words()
        assert missing(network)[:2] == [set(), set()], network.rounds()[done:]
