"""The life of a real network on loopback: sites that join with keys of their own, are revoked, and outlast a server."""

import json
import shutil
from pathlib import Path

import pytest
from tests.deploy.cluster import Cluster, cluster, eventually, named

from fedfew.deploy import joining
from fedfew.deploy.audit import events
from fedfew.deploy.plan import STATUS, open_server
from fedfew.deploy.site.agreement import asked_plans
from fedfew.deploy.site.ledger import verify
from fedfew.deploy.site.limits import LIMITS

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
