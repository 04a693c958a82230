"""The queue of plans, and what monitoring reads."""

import json
import sys
from pathlib import Path

import httpx
import pytest
from tests.deploy.cluster import eventually

from fedfew.core.errors import FedfewError
from fedfew.deploy.audit import events, note_seen
from fedfew.deploy.monitoring import monitored
from fedfew.deploy.plan import STATUS, make_network, open_bundle
from fedfew.deploy.processes import Supervisor, flower_environment, free_ports
from fedfew.deploy.server.network import start_or_resume
from fedfew.deploy.server.queue import leave, run_folder, submit, waiting


def test_plans_wait_in_order_and_leave_a_trail(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "net", ["a", "b"])
    first, second = (submit(plan, "quick", {"rounds": n}, "study") for n in (3, 4))
    assert waiting(plan.folder) == [first, second] and second.name == "0002-study.toml"
    assert "rounds = 4" in second.read_text() and run_folder(plan, second) == plan.folder / "runs" / "0002-study"
    leave(plan, first)
    leave(plan, second, FedfewError("E503", "network", "nobody came"))
    assert waiting(plan.folder) == [] and submit(plan, "quick", {}, "next").name == "0003-next.toml"
    told = [(event["event"], event["plan"]) for event in events(plan.folder)]
    assert told[2:4] == [("plan done", first.name), ("plan failed", second.name)]


@pytest.mark.parametrize(
    ("name", "overrides", "where"),
    [("../x", {}, "name"), ("x", {"fleet.only": "c"}, "sites"), ("x", {"rounds": -1}, "rounds")],
)
def test_a_plan_that_could_not_run_is_refused_when_it_is_submitted(
    tmp_path: Path, name: str, overrides: dict[str, object], where: str
) -> None:
    plan = make_network(tmp_path / "net", ["a"])
    with pytest.raises(FedfewError) as fault:
        submit(plan, "quick", overrides, name)
    assert fault.value.code == "E103" and where in str(fault.value) and not waiting(plan.folder)


def test_a_plan_in_the_queue_names_no_code(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "net", ["a"])
    queued = submit(plan, "quick", {}, "study")
    queued.write_text(queued.read_text().replace('name = "fedmix"', 'name = "subprocess:run"'))
    with pytest.raises(FedfewError) as fault:
        start_or_resume(plan, print, queued, {}, run_folder(plan, queued))
    assert fault.value.code == "E125"


def test_health_and_metrics_of_server_and_site(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "net", ["a"])
    site = open_bundle(tmp_path / "net" / "bundles" / "a.tar", tmp_path / "a")
    note_seen(plan.folder, {"a": 1000.0, "stranger": 2000.0})
    (site.folder / STATUS).write_text("online")
    (site.folder / "answers.json").write_text(json.dumps({"f00d": 7}))
    supervisor, (port, own) = Supervisor(tmp_path / "logs"), free_ports(2)
    supervisor.add("front", [sys.executable, "-c", "input()"], flower_environment(tmp_path), restart=False)
    with monitored(port, supervisor, plan), monitored(own, supervisor, site):
        lines = httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
        assert 'fedfew_site_last_seen_seconds{site="a"} 1000.0' in lines and "fedfew_queue_length 0.0" in lines
        assert not any("stranger" in line for line in lines)
        lines = httpx.get(f"http://127.0.0.1:{own}/metrics").text.splitlines()
        assert 'fedfew_answers{plan="f00d"} 7.0' in lines and "fedfew_site_online 1.0" in lines
        health = f"http://127.0.0.1:{own}/healthz"
        assert eventually(lambda: httpx.get(health).status_code == 503, 30)  # the process has ended: it had no input
        assert httpx.get(health).json() == {"ok": False, "processes": {"front": False}, "status": "online"}
        assert httpx.get(f"http://127.0.0.1:{own}/").status_code == 404
        with pytest.raises(FedfewError, match="E504"), monitored(own, supervisor, site):
            pass
    supervisor.close()
