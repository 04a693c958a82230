"""One real cluster on every commit: Flower's processes, TLS, keys and warm sites give the bits of an inline run."""

import json
from pathlib import Path

from tests.flower.cluster import Cluster, alive, descendants, eventually
from tests.flower.conftest import TINY

from fedfew.experiment.run import Experiment


def test_a_trial_on_this_machine_gives_the_same_model(tmp_path: Path) -> None:
    changes = TINY | {"rounds": 2, "participation": 1.0}
    expected = Experiment.load("quick", changes).run(tmp_path / "inline").summary
    settings = [f"--set={key}={json.dumps(value)}" for key, value in changes.items() if key != "fleet.kind"]
    here = Cluster(tmp_path, plan=None)  # type: ignore[arg-type]
    trial = here.start("deploy", "local", "quick", "--sites", "2", "--json", "--out", str(tmp_path / "run"), *settings)
    below: list[int] = []
    try:
        assert eventually((tmp_path / "run" / "rounds.jsonl").exists, 60), trial.errors()
        below = descendants(trial.pid)
        assert trial.wait(150) == 0, trial.errors()
    finally:
        trial.end()
    assert trial.result()["model_sha256"] == expected["model_sha256"]
    assert not alive(below)
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [record["wire"]["messages"] for record in records] == [2, 2]
    assert [record["cohort"] for record in records] == [[0, 1, 2, 3, 4, 5]] * 2
    ledger = (tmp_path / "run" / "network" / "sites" / "site1" / "ledger.jsonl").read_text().splitlines()
    assert sum("tensor" in json.loads(line) for line in ledger) == 6
