"""The table of all methods: sound configs, the same work, what runs reached; and the study's own methods."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.method_tasks import ABLATION, ARMS, SERVER_ONLY, TASKS, Task, config_of, other_setting
from benchmarks.methods import section, table
from benchmarks.odd_sites import long_tailed
from benchmarks.scanners import seen_by, sites
from benchmarks.study_methods import ABLATED, OUTAGE, Ablated, propagated

from benchmarks import method_tasks, methods
from fedfew.config.files import flat
from fedfew.data import DATASETS
from fedfew.methods import METHODS
from fedfew.runs.collection import read_archive
from fedfew.runs.run import Run

ALIKE = ("rounds", "clients", "participation", "labels", "dataset.name", "dataset.seed", "partition.kind", "model.name",
         "server.epochs", "server.lr", "server.batch", "server.augment", "server.schedule", "evaluate.ema")  # fmt: skip
APART = {"fedbn", "ds-fl"}
"""Batch norm, and public images."""


@pytest.mark.parametrize("task", TASKS)
def test_all_arms_share_one_setting_or_stand_apart(task: str) -> None:
    configs = {name: config_of(TASKS[task], name, 0, "start") for name in ARMS | ABLATION}
    flats = [flat(config.document) for config in configs.values()]
    for key in ALIKE:
        assert len({str(settings[key]) for settings in flats}) == 1, key
    assert {name for name in configs if other_setting(TASKS[task], name)} == APART
    others = [config for name, config in configs.items() if name != "fedfew − clients"]
    assert {config.client.epochs for config in others} == {2}
    together = [config for name, config in configs.items() if name not in APART]
    assert {config.start for config in together} == {configs[SERVER_ONLY].start}
    assert {config.model.settings["norm"] for config in together} == {"group"}
    before = {config.document["method"].get("warmup", config.server.sgd.epochs) for config in together}
    assert before == {configs[SERVER_ONLY].server.sgd.epochs}, "as many server epochs before the first round"


def test_what_a_search_found_is_used_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["arm,trial,validation,settings"]
    for arm, value, settings in (
        ("server-only", 0.7, {"server.lr": 0.02}),
        ("server-only", 0.8, {"server.lr": 0.1}),
        ("fixmatch", 0.9, {"client.lr": 0.05}),
    ):
        text = json.dumps(settings).replace('"', '""')
        lines.append(f'{arm},0,{value},"{text}"')
    (tmp_path / "digits.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(method_tasks, "FOUND", tmp_path)
    monkeypatch.setattr(methods, "FOUND", tmp_path)
    task = TASKS["digits"]
    fixmatch = config_of(task, "fixmatch", 0, "")
    assert fixmatch.server.sgd.lr == config_of(task, SERVER_ONLY, 0, "").server.sgd.lr == 0.1
    assert fixmatch.client.lr == 0.05 != config_of(task, "uda", 0, "").client.lr
    assert "best of 2 different trials" in methods.searched(task) and "server.lr = 0.1" in methods.searched(task)


def test_every_method_has_an_arm() -> None:
    result = {config_of(TASKS["digits"], arm, 0, "").method_name for arm in ARMS}
    assert set(METHODS) - result == {"fedmoments", "labels-names"}  # which work on features of a pretrained backbone


def test_a_table_over_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"rounds": 2, "server.epochs": 1, "client.epochs": 1, "dataset.unlabeled": 100, "model.width": 4}
    small |= {"dataset.test": 50, "dataset.validation": 20}
    monkeypatch.setitem(
        TASKS, "digits", Task("few digits", small | {"fleet.kind": "inline"}, {"rounds": 1}, "As they come.")
    )
    names = [SERVER_ONLY, "fixmatch", "ds-fl"]
    methods.run(TASKS["digits"], names, 2, tmp_path, 0, 0)
    text = section("digits", tmp_path, [2])
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(names), "ds-fl stands in a table of its own"
    assert "- ds-fl: `dataset.open = 600` (0)" in text
    assert "few digits" in text
    all_runs = list(methods.runs_of(TASKS["digits"], methods.known_runs(tmp_path)))
    runs = {name: [run for result, run in all_runs if result == name] for name in names}
    assert [len(result) for result in runs.values()] == [2, 2, 2]
    start = json.loads((runs["fixmatch"][0].path / "summary.json").read_text())
    assert start["rounds"] == 2
    accuracy = sum(r["accuracy"] or 0.0 for o in runs["fixmatch"] for r in Run.open(o.path).records) / 4
    assert f"| fixmatch | {100 * accuracy:.1f}" in table(runs, 2)
    assert table(runs, 3).count("\n") == 2  # nobody has come that far
    methods.keep(TASKS["digits"], tmp_path, tmp_path / "kept.jsonl.xz")
    assert section("digits", tmp_path / "kept.jsonl.xz", [2]) == text, "the archive makes the same table"
    assert str(tmp_path) not in str(
        [(run.document, run.environment) for run in read_archive(tmp_path / "kept.jsonl.xz")]
    )


def test_the_published_table_is_that_of_its_records() -> None:
    root = Path(methods.__file__).parents[1]
    text = section("digits", root / "benchmarks/results/methods-digits.jsonl.xz", [TASKS["digits"].shared["rounds"]])
    assert text in (root / "docs/understand/results.md").read_text("utf-8")


def test_labels_spread_over_neighbors_and_not_over_gaps() -> None:
    """Two rings, one label each: the nearest label is often the wrong one, the ring's own never."""
    rng = torch.Generator().manual_seed(0)
    angle = torch.rand(400, generator=rng) * 6.2832
    ring = torch.arange(400) % 2
    x = torch.stack([angle.cos(), angle.sin()], 1).repeat(1, 1) * (1 + 2 * ring[:, None])
    x = torch.cat([x, 6 * ring[:, None] - 3.0], 1)  # as directions, rings lie apart
    result = propagated(x.double(), ring[:2], 2, neighbors=10)
    assert torch.equal(result, ring)


def test_a_long_tail_falls_by_its_ratio_and_the_test_set_stays() -> None:
    made, whole = long_tailed(ratio=4.0, of="mini-cifar"), DATASETS["mini-cifar"]()
    counts = torch.bincount(made.train.labels)
    assert counts[0] == 4 * counts[-1] and (counts.diff() <= 0).all()
    assert torch.equal(made.test.labels, whole.test.labels)


def test_labels_are_seen_under_so_many_changes() -> None:
    plain = sites(of="mini-cifar", images=100, tested=20, labels=20, sites=4)
    seen = sites(of="mini-cifar", images=100, tested=20, labels=20, sites=4, views=21)
    assert len(seen.train.labels) == 22 * 20
    assert torch.equal(seen.train.samples.data[:20], plain.train.samples.data)
    assert len(seen_by(plain.train, 7).labels) == 8 * 20


def test_the_variants_of_fedmoments_are_fedmoments_but_for_their_own_settings() -> None:
    assert OUTAGE.encoding == ABLATED.encoding and OUTAGE.settle is ABLATED.settle
    assert {"class_mix", "client_spread"} <= ABLATED.settings.keys()
    assert Ablated.after_clients is OUTAGE.method.after_clients  # type: ignore[attr-defined]
