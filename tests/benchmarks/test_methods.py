"""The table of all methods: every arm is a sound config with the same work; the table says what runs reached."""

import json
from pathlib import Path

import pytest
from benchmarks.methods import ABLATION, ARMS, SERVER_ONLY, TASKS, Task, config_of, section, table

from benchmarks import methods
from fedfew.config.files import presets
from fedfew.methods import METHODS
from fedfew.runs.run import Run

ALIKE = ("rounds", "clients", "labels", "dataset.name", "dataset.seed", "partition.kind", "model.name", "model.norm",
         "server.epochs", "server.lr", "server.batch", "server.augment", "start")  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_all_arms_share_split_start_rounds_and_server_training(task: str) -> None:
    configs = {name: config_of(TASKS[task], *arm, 0, "start") for name, arm in (ARMS | ABLATION).items()}
    for key in ALIKE:
        assert len({str(config[key]) for config in configs.values()}) == 1, key
    others = [config for name, config in configs.items() if "fedmix" not in name and name != "fedfew − clients"]
    assert {config["client.epochs"] for config in others} == {2}
    assert all(config["method"].get("warmup", 0) == 0 for config in configs.values())


def test_every_method_has_an_arm() -> None:
    found = {config_of(TASKS["digits"], *arm, 0, "")["method.name"] for arm in ARMS.values()}
    assert set(METHODS) - found <= set(METHODS) - set(presets())  # one without a preset is not for these tasks


def test_a_table_over_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"rounds": 2, "server.epochs": 1, "client.epochs": 1, "dataset.unlabeled": 200, "model.width": 4}
    monkeypatch.setitem(
        methods.TASKS, "digits", Task("few digits", small | {"fleet.kind": "inline"}, {"rounds": 1}, "As they come.")
    )
    names = [SERVER_ONLY, "fixmatch", "ds-fl"]
    methods.run(methods.TASKS["digits"], names, 2, tmp_path, 0, 0)
    text = section("digits", tmp_path, [2])
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(names)
    assert "few digits" in text
    runs = {
        name: [o for found, o in methods.runs_of(methods.TASKS["digits"], tmp_path) if found == name] for name in names
    }
    assert [len(found) for found in runs.values()] == [2, 2, 2]
    start = json.loads((runs["fixmatch"][0].path / "summary.json").read_text())
    assert start["rounds"] == 2
    accuracy = sum(r["accuracy"] or 0.0 for o in runs["fixmatch"] for r in Run.open(o.path).records) / 4
    assert f"| fixmatch | {100 * accuracy:.1f}" in table(runs, 2)
    assert table(runs, 3).count("\n") == 2  # nobody has come that far
