"""One real cluster on every commit: Flower's processes, TLS, keys and warm sites give the bits of an inline run.

Every Python process of it runs with a hook that writes down each connection and blocks those to other machines.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.deploy.cluster import Cluster, alive, descendants, eventually
from tests.deploy.conftest import TINY

from fedfew.runs.session import Experiment

HOOK = """
import os, sys
def watch(event, arguments):
    if event == "socket.connect":
        address = arguments[1]
    elif event == "socket.getaddrinfo":
        address = arguments[:2]
    else:
        return
    inside = not isinstance(address, tuple) or str(address[0] or "").strip("[]") in INSIDE
    with open(os.environ["CONNECTIONS"], "a") as file:
        file.write(f"{'inside' if inside else 'OUTSIDE'} {event} {address!r} {sys.argv[:1]}\\n")
    if not inside:
        raise OSError("blocked")
INSIDE = ("127.0.0.1", "::1", "localhost", "")
sys.addaudithook(watch)
"""


def watched(folder: Path) -> dict[str, str]:
    """The environment of processes whose connections are written down and blocked if they go outside."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    places = [str(folder / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(places), "CONNECTIONS": str(folder / "connections")}


def test_the_hook_sees_and_blocks_a_connection_to_the_outside(tmp_path: Path) -> None:
    attempt = "import socket; socket.create_connection(('192.0.2.1', 9), timeout=1)"
    done = subprocess.run(
        [sys.executable, "-c", attempt], env=os.environ | watched(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 1 and "blocked" in done.stderr
    assert "OUTSIDE" in (tmp_path / "connections").read_text()


def test_a_trial_on_this_machine_gives_the_same_model(tmp_path: Path) -> None:
    changes = TINY | {"rounds": 2, "participation": 1.0}
    expected = Experiment.load("quick", changes).run(tmp_path / "inline").summary
    settings = [f"--set={key}={json.dumps(value)}" for key, value in changes.items() if key != "fleet.kind"]
    here, run = Cluster(tmp_path, plan=None), tmp_path / "run"  # type: ignore[arg-type]
    command = ["deploy", "local", "quick", "--sites", "2", "--json", "--out", str(run), *settings]
    trial = here.start(*command, environment=watched(tmp_path))
    below: list[int] = []
    try:
        assert eventually((run / "rounds.jsonl").exists, 180), trial.errors()
        below = descendants(trial.pid)
        assert trial.wait(400) == 0, trial.errors()
    finally:
        trial.end()
    assert trial.result()["model_sha256"] == expected["model_sha256"]
    assert not alive(below)
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [record["wire"]["messages"] for record in records] == [2, 2]
    assert [record["cohort"] for record in records] == [[0, 1, 2, 3, 4, 5]] * 2
    ledger = (run / "network" / "sites" / "site1" / "ledger.jsonl").read_text().splitlines()
    assert sum("tensor" in json.loads(line) for line in ledger) == 6
    connections = (tmp_path / "connections").read_text().splitlines()
    assert not [line for line in connections if line.startswith("OUTSIDE")]
    for process in ("flower-supernode", "flwr-clientapp", "flwr-serverapp", "flower_programs", "fedfew"):
        assert any(process in line for line in connections), process
