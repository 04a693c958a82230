"""Starting and resuming: one process at a time, only where it belongs, only with equal bits, and nothing half-made."""

import itertools
import json
import shutil
import threading
import time
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.crashes import copy_of, quiet, resume
from tests.runtime.tiny_run import TINY, model_hash, records, tiny

from fedfew.config.parts import assemble
from fedfew.core.environment import fingerprint
from fedfew.core.errors import FedfewError
from fedfew.core.storage import locked
from fedfew.runs.model_file import first_weights
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen, start


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("full", "E301.*is not empty"),
        ("file", "E301.*is a file"),
        ("file/run", "E305"),
        (".", "E301.*is the current folder"),
        ("../here", "E301.*is the current folder"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    out: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "full").mkdir(parents=True)
    (here / "full" / "mine.txt").write_text("mine")
    (here / "file").write_text("mine")
    monkeypatch.chdir(here)
    with pytest.raises(FedfewError, match=why):
        start(tiny(), out)
    assert sorted(path.name for path in here.rglob("*")) == ["file", "full", "mine.txt"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    start(tiny(), tmp_path)
    assert (tmp_path / "run.toml").is_file()


def test_of_two_starts_in_one_place_the_second_is_refused(tmp_path: Path) -> None:
    results: list[str] = []
    barrier = threading.Barrier(2)

    def begin(number: int) -> None:
        barrier.wait()
        try:
            start(tiny(seed=number), tmp_path / "run")
            results.append("started")
        except FedfewError as fault:
            results.append(fault.code)

    threads = [threading.Thread(target=begin, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) in (["E301", "started"], ["E305", "started"])  # one process stages under one name
    assert Run.open(tmp_path / "run").config.rounds == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_runs_get_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {start(tiny()).folder.path for _ in range(3)}
    assert len(folders) == 3
    assert all(path.name.startswith("mini-mnist-fedmix-") and path.parent == Path("runs") for path in folders)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"labels": 9_000}, "E109"),
        ({"clients": 121}, "E108"),
        ({"model.name": "wrn", "model.depth": 11}, "E103"),
        ({"dataset.name": "no.such.module:data"}, "E111"),
    ],
)
def test_what_is_wrong_with_the_data_leaves_nothing_behind(
    overrides: dict[str, Any], code: str, tmp_path: Path
) -> None:
    with pytest.raises(FedfewError) as caught:
        Experiment.load(TINY, overrides).run(tmp_path / "deep" / "run")
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(FedfewError, match=r"E302.*does not exist"):
        reopen(tmp_path / "nowhere", quiet)
    with pytest.raises(FedfewError, match=r"E302.*is not a run folder"):
        reopen(tmp_path, quiet)
    (tmp_path / "run.toml").write_text("rounds = 3")
    with pytest.raises(FedfewError, match=r"E304.*none of 0"):
        reopen(tmp_path, quiet)


def test_one_process_at_a_time(stopped: Path) -> None:
    folder = copy_of(stopped, "busy")
    with locked(folder):
        before = everything(folder)
        with pytest.raises(FedfewError, match=r"E306.*in use"):
            reopen(folder, quiet)
        assert everything(folder) == before
    session = reopen(folder, quiet)
    with locked(folder), pytest.raises(FedfewError, match="E306"):
        next(session.advance())


def test_a_session_that_was_overtaken_does_not_go_back(stopped: Path, undisturbed: Run) -> None:
    folder = copy_of(stopped, "overtaken")
    late = reopen(folder, quiet)
    resume(folder)
    before = everything(folder)
    with pytest.raises(FedfewError, match=r"E306.*continued it meanwhile"):
        next(late.advance())
    assert everything(folder) == before
    assert model_hash(folder) == model_hash(undisturbed)


def test_a_session_can_be_advanced_again_after_it_was_stopped(tmp_path: Path, undisturbed: Run) -> None:
    session = start(tiny(rounds=3), tmp_path / "run")
    first = session.advance()
    next(first)
    first.close()
    assert [record["round"] for record in session.advance()] == [2, 3]
    assert list(session.advance()) == []
    assert model_hash(tmp_path / "run") == model_hash(undisturbed)


def test_checkpoints_of_another_run_are_refused(stopped: Path, tmp_path: Path) -> None:
    other = start(tiny(rounds=3, seed=2), tmp_path / "other")
    next(other.advance())
    folder = copy_of(stopped, "foreign")
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", folder / "checkpoints")
    before = everything(folder)
    with pytest.raises(FedfewError, match=r"E307.*another run"):
        reopen(folder, quiet)
    after = everything(folder)
    assert {path: after[path] for path in before} == before


def test_a_single_foreign_checkpoint_is_passed_over(stopped: Path, undisturbed: Run, tmp_path: Path) -> None:
    list(start(tiny(rounds=3, seed=2), tmp_path / "other").advance())
    folder = copy_of(stopped, "mixed")
    for name in ("round-000003.json", "state-000003.safetensors"):
        shutil.copy(tmp_path / "other" / "checkpoints" / name, folder / "checkpoints" / name)
    run, told = resume(folder)
    assert [(fault.code, Path(fault.where).name) for fault in told] == [("E303", "round-000003.json")]
    assert model_hash(run) == model_hash(undisturbed)


def test_another_partition_or_model_is_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a dataset of one's own, or a model of one's own, has changed since the start."""
    from fedfew.data.included import mini_mnist
    from fedfew.models import MODELS

    folder = copy_of(stopped, "changed")
    before = everything(folder)
    digits = mini_mnist()
    labels = digits.train.labels.clone()
    labels[:500] = 0
    changed = type(digits)("mini-mnist", type(digits.train)(digits.train.samples, labels), digits.test, digits.classes)
    with monkeypatch.context() as patch:
        patch.setattr("fedfew.data.included.mini_mnist", lambda: changed)
        with pytest.raises(FedfewError, match=r"E307.*another partition"):
            reopen(folder, quiet)
    narrow = MODELS["cnn"]

    @wraps(narrow)
    def wide(*shape: int, width: int, **options: Any) -> Any:
        return narrow(*shape, width=2 * width, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedfew.models.cnn.cnn", wide)
        with pytest.raises(FedfewError, match=r"E307.*another model"):
            reopen(folder, quiet)
    assert everything(folder) == before


def test_a_state_of_another_version_of_the_method_is_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of(stopped, "earlier")
    before = everything(folder)
    monkeypatch.setattr("fedfew.methods.fedmix.FedMix.state_format", 2)
    with pytest.raises(FedfewError, match=r"E307.*another version of fedmix.*Finish the run with the version"):
        reopen(folder, quiet, anyway=True)
    assert everything(folder) == before


def test_another_environment_is_refused_or_marked(
    stopped: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(stopped, "elsewhere")
    before = everything(folder)
    other = fingerprint() | {"torch": "9.9.9", "capability": "NONE", "device": "mps"}
    monkeypatch.setattr("fedfew.runs.files.fingerprint", lambda device: other)
    with pytest.raises(FedfewError, match=r"E308.*device was cpu, is mps.*torch was .*, is 9\.9\.9; capability was"):
        reopen(folder, quiet)
    assert everything(folder) == before
    run, told = resume(folder, anyway=True)
    assert [fault.code for fault in told] == ["E308"]
    about = json.loads((folder / "environment.json").read_text())
    assert about["fingerprint"] == fingerprint()
    assert about["resumed"] == [{"after_round": 2, "fingerprint": other}]
    assert model_hash(run) == model_hash(undisturbed)
    assert resume(folder)[1] == []  # still there: nothing new to tell
    monkeypatch.undo()
    with pytest.raises(FedfewError, match=r"E308.*device was mps, is cpu"):
        reopen(folder, quiet)


def test_a_changed_config_is_restored_and_told(stopped: Path, undisturbed: Run) -> None:
    folder = copy_of(stopped, "edited")
    path = folder / "run.toml"
    mine = path.read_text().replace("rounds = 3", "rounds = 30")
    path.write_text(mine)
    run, told = resume(folder)
    assert [(fault.code, Path(fault.where).name) for fault in told] == [("E309", "run.toml")]
    assert "run.toml.changed" in told[0].message
    assert (folder / "run.toml.changed").read_text() == mine
    assert run.config.rounds == 3
    assert model_hash(run) == model_hash(undisturbed)


@pytest.mark.parametrize("name", ["run.toml", "environment.json", "partition.npz", "classes.json", "rounds.jsonl"])
def test_a_missing_file_is_restored(name: str, stopped: Path, undisturbed: Run) -> None:
    folder = copy_of(stopped, "missing")
    before = (folder / name).read_bytes()
    (folder / name).unlink()
    told: list[FedfewError] = []
    reopen(folder, told.append)
    assert [(fault.code, Path(fault.where).name) for fault in told] == [("E309", name)]
    assert (folder / name).read_bytes() == before


def test_a_finished_run_is_left_as_it_is(undisturbed: Run) -> None:
    folder = copy_of(undisturbed.path, "again")
    before = everything(folder)
    run, told = resume(folder)
    assert told == []
    assert everything(folder) == before
    assert run.finished


def test_only_the_fleet_may_change_on_resume(stopped: Path, undisturbed: Run) -> None:
    folder = copy_of(stopped, "fleet")
    with pytest.raises(FedfewError, match=r"E307.*method\.alpha, seed cannot change"):
        reopen(folder, quiet, {"method.alpha": 0.1, "fleet.workers": 1, "seed": 3})
    with pytest.raises(FedfewError, match="E105"):
        reopen(folder, quiet, {"fleet.kind": "ships"})
    session = reopen(folder, quiet, {"fleet.kind": "inline", "fleet.workers": 3})
    assert session.parts.config.fleet.workers == 3
    list(session.advance())
    assert Run.open(folder).config.fleet.workers == 0
    assert model_hash(folder) == model_hash(undisturbed)


def test_a_clock_that_jumps_by_a_day_changes_nothing(
    undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durations come from another clock."""
    day, real = 86_400.0, time.time
    jumps = itertools.cycle((day, -day, 0.0))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    next(start(tiny(rounds=3), tmp_path / "run").advance())
    run, told = resume(tmp_path / "run")
    assert told == []
    assert model_hash(run) == model_hash(undisturbed) and records(run) == records(undisturbed)
    assert all(0 <= seconds < day / 2 for record in run.rounds for seconds in record["seconds"].values())


def test_reading_a_run_names_what_is_wrong(stopped: Path, undisturbed: Run) -> None:
    with pytest.raises(FedfewError, match="E310"):
        Run.open(stopped).summary
    with pytest.raises(FedfewError, match="E310"):
        Run.open(stopped).model()
    folder = copy_of(undisturbed.path, "unreadable")
    for name, content, read in (
        ("summary.json", b"{", lambda run: run.summary),
        ("model.safetensors", b"no tensors", lambda run: run.model()),
        ("rounds.jsonl", b"{'round'}\n", lambda run: run.rounds),
        ("rounds.jsonl", b"[1, 2]\n", lambda run: run.rounds),
        ("rounds.jsonl", b"{}\n", lambda run: run.rounds),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(FedfewError, match="E309"):
            read(Run.open(folder))


def test_training_starts_from_the_weights_of_another_run(tmp_path: Path) -> None:
    first = Experiment(tiny()).run(tmp_path / "first")
    trained = first.network().snapshot()
    for given in (tmp_path / "first", tmp_path / "first" / "model.safetensors"):
        session = start(tiny(start=str(given), method__name="server-only"), tmp_path / given.name / "second")
        assert torch.equal(session.state.omega, trained)


def test_what_cannot_be_started_from_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    Experiment(tiny()).run(tmp_path / "first")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    faults = {
        "nowhere": (tiny(start=str(tmp_path / "nowhere")), "E302.*does not exist"),
        "no model": (tiny(start=str(tmp_path)), "E310.*no final model"),
        "torn": (tiny(start=str(tmp_path / "torn.safetensors")), "E309.*damaged"),
        "wider": (tiny(start=str(tmp_path / "first"), model__width=8), "E113.*do not fit the model"),
        "pixels": (tiny(start=str(tmp_path / "first"), dataset__normalize="standard"), "E113.*normalis"),
    }
    for name, (config, words) in faults.items():
        with pytest.raises(FedfewError, match=words):
            start(config, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_other_classes_are_no_start(tmp_path: Path) -> None:
    Experiment(tiny()).run(tmp_path / "first")
    parts = assemble(tiny())
    parts = replace(parts, federation=replace(parts.federation, classes=("bar", "cross")))
    with pytest.raises(FedfewError, match=r"E113.*has the classes 0, 1.*this run has bar, cross"):
        first_weights(str(tmp_path / "first"), parts)
