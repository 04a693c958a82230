"""Sweeps: every cell once, in one folder, however often the command is given and however it was interrupted."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tiny_run import TINY, children, gone, model_hash, tiny

from fedfew.config.parts import cores
from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked
from fedfew.runs.run import Run
from fedfew.studies.parallel import advance_parallel, check_jobs
from fedfew.studies.search import Search, best_validation, search, searches, space_of
from fedfew.studies.sweep import Cell, CellEvent, advance, axes_of, cells_of, index, repeated, slug


def unwanted(fault: FedfewError) -> None:
    raise AssertionError(fault)


def kinds(events: list[CellEvent]) -> list[str]:
    return [event.kind for event in events if event.kind != "round"]


def test_a_grid_is_the_product_of_its_axes() -> None:
    cells = cells_of(TINY, {}, axes_of(["partition.mu=0.1,1", "seed=0,1"]))
    assert [(c.config.partition.settings["mu"], c.config.seed) for c in cells] == [(0.1, 0), (0.1, 1), (1, 0), (1, 1)]
    assert axes_of(["method.name=fedmix,server-only"]) == {"method.name": ["fedmix", "server-only"]}
    assert axes_of(['method.name=["fedmix"]']) == {"method.name": ["fedmix"]}
    assert axes_of(["server.nesterov=true,false"]) == {"server.nesterov": [True, False]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *(([option], "E102") for option in ("seed", "=1,2", "seed=", "seed=[]")),
        (["seed=1,2,1"], "E103.*1 twice"),
        (["seed=0", "seed=1"], "E103.*varied twice"),
        (["labels=20,30"], "E113.*--set"),
        (["partition.mu=1,-1"], "E103"),  # every config is checked before anything runs
    ],
)
def test_a_grid_that_is_none_is_refused(options: list[str], says: str) -> None:
    with pytest.raises(FedfewError, match=says):
        cells_of(TINY, {"labels": 20}, axes_of(options))


@pytest.mark.parametrize("option", ["server.lr", "server.lr=1", "server.lr=2:1", "server.lr=0:1:log", "server.lr=a:b"])
def test_an_interval_that_is_none_or_nothing_to_search_is_refused(option: str) -> None:
    with pytest.raises(FedfewError, match="E102"):
        space_of([], [option])
    with pytest.raises(FedfewError, match="E103"):
        space_of([], [])


def test_a_seed_repeats_everything_unless_the_data_are_held_still() -> None:
    base, axes = repeated("quick", {"seed": 4}, {"method.name": ["fedmix", "semifl"]}, 3, "")
    seeds = [(cell.config.seed, cell.config.dataset.seed) for cell in cells_of("quick", base, axes)]
    assert seeds == 2 * [(4, 4), (5, 5), (6, 6)]
    base, axes = repeated("quick", {"dataset.seed": 7}, {}, 2, "data")
    assert [(c.config.seed, c.config.dataset.seed) for c in cells_of("quick", base, axes)] == [(0, 7), (1, 7)]
    with pytest.raises(FedfewError, match="--seeds"):
        repeated("quick", {}, {"seed": [0, 1]}, 2, "")


def test_seeds_draw_the_data_anew_even_if_the_config_gives_it_a_seed() -> None:
    config = TINY | {"dataset": {**TINY["dataset"], "seed": 7}}

    def data_seeds(base: dict[str, Any], axes: dict[str, list[int]], seeds: int = 0, fix: str = "") -> list[int]:
        return [c.config.dataset.seed for c in cells_of(config, *repeated(config, base, axes, seeds, fix))]

    assert data_seeds({}, {}, seeds=2) == [1, 2]  # TINY has seed 1
    assert data_seeds({}, {"seed": [3, 4]}) == [3, 4]
    assert data_seeds({}, {}, seeds=2, fix="data") == [7, 7]
    assert data_seeds({"dataset.seed": 5}, {}, seeds=2) == [5, 5], "asked for with --set"
    assert data_seeds({"seed": 9}, {"rounds": [1]}) == [7], "no repetition"
    winners = Search(config, {}, {}, 1, Path("unused")).winner(2)
    assert [cell.config.dataset.seed for cell in winners] == [2, 3]


def test_names_can_be_read_and_do_not_clash() -> None:
    assert slug({"method.name": "fedmix", "partition.mu": 0.1, "seed": 2}) == "fedmix-mu0.1-seed2"
    assert slug({"dataset.path": "../a b/c"}) == "path.._a_b_c"
    cells = cells_of(TINY, {}, axes_of(["server.lr=0.01,0.02", "client.lr=0.01,0.02"]))
    assert len({cell.folder for cell in cells}) == 4
    assert cells[0].folder.startswith("lr0.01-lr0.01-")


def test_finished_cells_are_kept_and_new_ones_added(tmp_path: Path) -> None:
    first = cells_of(TINY, {"rounds": 1}, axes_of(["seed=0,1"]))
    events = list(advance(first, tmp_path, unwanted))
    assert kinds(events) == ["started", "finished"] * 2
    before = {path.name: (path / "rounds.jsonl").stat().st_mtime_ns for path in tmp_path.iterdir()}
    more = cells_of(TINY, {"rounds": 1}, axes_of(["seed=1,2"]))
    assert kinds(list(advance(more, tmp_path, unwanted))) == ["skipped", "started", "finished"]
    last = cells_of(TINY, {"rounds": 1}, axes_of(["seed=3,1,0"]))
    for coming in (advance(last, tmp_path, unwanted), advance_parallel(last, tmp_path, 1)):
        assert kinds([next(coming), next(coming)]) == ["skipped", "skipped"], "first, so what is left is known"
        coming.close()
    assert all((tmp_path / name / "rounds.jsonl").stat().st_mtime_ns == time for name, time in before.items())
    assert len(list(tmp_path.iterdir())) == 3


def test_runs_pause_at_a_round_and_go_on_later(tmp_path: Path) -> None:
    cells = cells_of(TINY, {"rounds": 3}, axes_of(["seed=0"]))

    def go(until: int) -> list[CellEvent]:
        return list(advance(cells, tmp_path / "cut", unwanted, until=until))

    assert kinds(go(2)) == ["started", "paused"]
    assert Run.open(tmp_path / "cut" / cells[0].folder).done == 2
    assert kinds(go(2)) == ["paused"]
    rest = go(9)
    assert kinds(rest) == ["started", "finished"]
    whole = list(advance(cells, tmp_path / "whole", unwanted, until=3))
    assert kinds(whole) == ["started", "finished"]
    assert model_hash(rest[-1].path) == model_hash(whole[-1].path)


def test_the_fleet_does_not_make_another_experiment(tmp_path: Path) -> None:
    cell = Cell("a", tiny(rounds=1))
    list(advance([cell], tmp_path, unwanted))
    pooled = Cell("b", tiny(rounds=1, fleet__kind="pool"))
    assert kinds(list(advance([pooled], tmp_path, unwanted))) == ["skipped"]


def test_a_run_is_found_under_another_name(tmp_path: Path) -> None:
    cell = Cell("a", tiny(rounds=1))
    path = list(advance([cell], tmp_path, unwanted))[-1].path.rename(tmp_path / "under-another-name")
    assert index(tmp_path) == {cell.identity: path}
    assert kinds(list(advance([cell], tmp_path, unwanted))) == ["skipped"]


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    cell = Cell("a", tiny(rounds=1))
    path = list(advance([cell], tmp_path, unwanted))[-1].path
    path = path.rename(tmp_path / "old")
    (path / "run.toml").write_text("forgotten_key = 1\n", "utf-8")
    assert kinds(list(advance([cell], tmp_path, unwanted))) == ["started", "finished"]


def test_what_another_process_works_on_is_passed_over(tmp_path: Path) -> None:
    cells = cells_of(TINY, {"rounds": 2}, axes_of(["seed=0,1"]))
    begun = advance(cells[:1], tmp_path, unwanted)
    next(begun)
    next(begun)
    begun.close()
    with locked(tmp_path / cells[0].folder):
        events = list(advance(cells, tmp_path, unwanted))
    assert kinds(events) == ["busy", "started", "finished"]


def test_a_run_that_fails_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    silent = {"rounds": 3, "max_skipped": 1}
    cells = cells_of(TINY, silent, axes_of(["availability.dropout=1.0,0.0"]))
    events = list(advance(cells, tmp_path, unwanted))
    assert kinds(events) == ["started", "failed", "started", "finished"]
    fault = next(e.fault for e in events if e.kind == "failed")
    assert fault is not None
    assert fault.code == "E501"


def test_a_config_that_cannot_start_stops_at_once(tmp_path: Path) -> None:
    cells = cells_of(TINY, {"labels": 100_000}, axes_of(["seed=0,1"]))
    with pytest.raises(FedfewError, match="E109"):
        list(advance(cells, tmp_path, unwanted))
    assert not index(tmp_path)


def test_jobs_fit_the_cores() -> None:
    check_jobs(1)
    for jobs in (0, cores() + 1):
        with pytest.raises(FedfewError, match=r"E103.*cores"):
            check_jobs(jobs)


def test_processes_give_the_same_bits_and_end_with_their_parent(tmp_path: Path) -> None:
    """One is interrupted, another pauses where it is asked to, and this process does the rest."""
    cells = cells_of(TINY, {"rounds": 9}, axes_of(["seed=0"]))
    before = children(os.getpid())  # of other tests, such as W&B's service
    events = advance_parallel(cells, tmp_path / "cut", 1)
    assert [next(events).kind for _ in range(2)] == ["started", "round"]
    workers = [child for child in children(os.getpid()) if child not in before]
    assert workers
    events.close()
    assert gone(workers)
    assert Run.open(tmp_path / "cut" / cells[0].folder).done >= 1
    assert kinds(list(advance_parallel(cells, tmp_path / "paused", 1, until=4))) == ["started", "paused"]
    assert Run.open(tmp_path / "paused" / cells[0].folder).done == 4
    ends = [list(advance(cells, tmp_path / name, unwanted))[-1].path for name in ("cut", "paused", "alone")]
    assert len({model_hash(path) for path in ends}) == 1
    assert kinds(list(advance_parallel(cells, tmp_path / "paused", 1))) == ["skipped"]


def test_a_process_finds_code_that_this_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ``python -m`` has put the current folder on the import path."""
    (tmp_path / "code_beside.py").write_text("from fedfew.methods.fedmix import FedMix as Mine\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    cells = cells_of(TINY, {"rounds": 1, "method.name": "code_beside:Mine"}, axes_of(["seed=0"]))
    assert kinds(list(advance_parallel(cells, tmp_path / "runs", 1))) == ["started", "finished"]


def test_a_process_reports_its_fault(tmp_path: Path) -> None:
    cells = cells_of(TINY, {"labels": 100_000}, axes_of(["seed=0"]))
    events = list(advance_parallel(cells, tmp_path, 1))
    assert [(e.kind, e.fault.code if e.fault else "") for e in events] == [("failed", "E109")]


def test_a_search_goes_by_validation_and_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = space_of(["method.threshold=0.2,0.3"], ["server.lr=0.01:0.1:log"])

    def trials(count: int) -> Any:
        return search(Search(TINY, {"rounds": 2}, space, count, tmp_path), unwanted)

    under_way = trials(2)
    first = next(under_way)
    assert next(under_way).kind == "round"
    under_way.close()  # interrupted in its first trial
    events = list(trials(2))
    assert events[0].kind == "started"
    assert (events[0].path, events[0].done) == (first.path, 1)
    assert kinds(events) == ["started", "finished"] * 2
    journal = [json.loads(line) for line in (tmp_path / "optuna.journal").read_text("utf-8").splitlines()]
    told = [entry["values"] for entry in journal if entry.get("values")]
    accuracies = [
        max(json.loads(line)["validation"] for line in (e.path / "rounds.jsonl").read_text("utf-8").splitlines())
        for e in events
        if e.kind == "finished"
    ]
    assert told == [[value] for value in accuracies]
    assert [best_validation(e.path) for e in events if e.kind == "finished"] == accuracies
    assert kinds(list(trials(2))) == ["skipped"] * 2


def test_a_search_over_other_values_needs_another_folder(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    list(search(Search(TINY, {"rounds": 1}, space_of(["method.threshold=0.2,0.3"], []), 1, tmp_path), unwanted))
    with pytest.raises(FedfewError, match=r"E113.*other values"):
        list(search(Search(TINY, {"rounds": 1}, space_of(["method.threshold=0.4,0.5"], []), 2, tmp_path), unwanted))


def test_every_method_has_the_same_budget_and_winners_run_on_other_seeds(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = space_of(["method.name=fedmix,fedavg,server-only", "client.lr=0.01,0.05"], ["method.threshold=0.1:0.3"])
    plans = searches(TINY, {"rounds": 1}, space, 2, tmp_path)
    assert [list(plan.keys) for plan in plans] == [["client.lr", "method.threshold"], ["client.lr"], []]
    ended = [len([e for e in search(plan, unwanted) if e.kind in ("finished", "skipped")]) for plan in plans]
    assert ended == [2, 2, 0]
    cells = [cell for plan in plans for cell in plan.winner(2)]
    assert [(cell.config.method_name, cell.config.seed) for cell in cells] == [
        (name, seed) for name in ("fedmix", "fedavg", "server-only") for seed in (2, 3)
    ]  # TINY, and so the search, has seed 1
    trials = [Run.open(path) for path in (tmp_path / "fedavg").iterdir() if path.is_dir()]
    reached = {run.config.client.lr: best_validation(run.path) for run in trials}
    assert reached[cells[2].config.client.lr] == max(reached.values())
    list(advance(cells[2:3], tmp_path / "winners", unwanted))
    (winner,) = (Run.open(path) for path in (tmp_path / "winners").iterdir())
    assert winner.tuned == "best of 2 trials by validation accuracy (client.lr)"


def test_a_search_needs_validation_images(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FedfewError, match="E113"):
        list(search(Search(TINY, {"dataset.validation": 0}, {"seed": [0, 1]}, 1, tmp_path), unwanted))


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FedfewError, match=r"E112.*\.\[sweep\]"):
        list(search(Search(TINY, {}, {"seed": [0]}, 1, tmp_path), unwanted))
