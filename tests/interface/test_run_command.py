"""run, resume, ls, methods, explain, data and partition as a person meets them: JSON, mistakes, Ctrl-C."""

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.interface.fedfew_command import LASTING, Capture, committed, fedfew, launch, under_way, write_config
from tests.runtime.tiny_run import TINY, gone, model_hash, records, tiny_run

from fedfew.aggregators import AGGREGATORS
from fedfew.config.schema import load
from fedfew.core.errors import Refusal
from fedfew.core.types import Missing
from fedfew.data import DATASETS, PARTITIONS
from fedfew.interface import progress
from fedfew.methods import METHODS
from fedfew.models import MODELS
from fedfew.objectives import OBJECTIVES
from fedfew.runs import checkpoints
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, start


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, TINY)


def test_run_resume_and_ls(config: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = fedfew(capsys, "run", config, "--no-baseline", "--out", "runs/one", "--json")
    assert said.status == 0, said.err
    assert said.out.count("\n") == 1
    keys = {"run", "rounds", "accuracy", "model_sha256", "seconds", "verdict", "baseline", "recommended"}
    assert said.json.keys() == keys
    assert said.json["accuracy"].keys() == {"last", "mean_last_10", "best_by_validation"}
    assert said.json["run"] == "runs/one"
    assert said.json["rounds"] == 2
    assert said.json["model_sha256"] == model_hash(Path("runs/one")) == model_hash(tiny_run(tmp_path / "again"))
    assert isinstance(said.json["seconds"], float)

    line = Run.open("runs/one").rounds[0]
    promised = {"round", "accuracy", "loss", "cohort", "weights", "coverage", "correct", "bytes_up", "bytes_down"}
    assert line.keys() >= promised | {"seconds", "rejected"}
    assert line["seconds"].keys() == {"server", "clients", "aggregate", "evaluate", "checkpoint"}

    again = fedfew(capsys, "resume", "runs/one", "--json")
    assert again.status == 0
    assert again.err.strip() == ""
    assert {**again.json, "seconds": 0} == {**said.json, "seconds": 0}

    start(Experiment.load(TINY, {"method.name": "fedavg"}).config, "runs/two")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.toml").write_text("rounds = ")
    (tmp_path / "runs" / ".half.1.tmp").mkdir()
    (tmp_path / "runs" / ".half.1.tmp" / "run.toml").write_text("rounds = 2")
    listed = fedfew(capsys, "ls", "runs", "--json")
    assert listed.status == 0
    rows = {Path(row["run"]).name: row for row in listed.json["runs"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "one": "finished",
        "two": "stopped",
        "broken": "unreadable (E309)",
    }
    assert (rows["one"]["rounds"], rows["one"]["of"], rows["one"]["method"]) == (2, 2, "fedmix")
    assert (rows["two"]["rounds"], rows["two"]["accuracy"]) == (0, None)
    assert "one" in fedfew(capsys, "ls", "runs").out
    assert "no runs below" in fedfew(capsys, "ls", tmp_path / "runs" / "one" / "checkpoints").out


def test_a_log_file_has_a_line_for_each_round(config: Path, tmp_path: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "run", config, "--no-baseline", "--out", tmp_path / "run", "--json")
    scores = [f"{100 * (record['accuracy'] or 0.0):.1f} %" for record in Run.open(tmp_path / "run").rounds]
    lines = [line.partition(",")[0] for line in said.err.splitlines() if ": round " in line]
    title = "fedmix on mini-mnist"  # several runs may follow one another in a log file
    assert lines == [f"{title}: round {i}/2: accuracy {score}" for i, score in enumerate(scores, 1)]


def test_server_only_training_follows_unless_it_is_there_or_not_wanted(
    config: Path, tmp_path: Path, capsys: Capture
) -> None:
    alone = fedfew(capsys, "run", config, "--no-baseline", "--out", tmp_path / "alone" / "run")
    assert "Without --no-baseline" in alone.err and "labels alone" not in alone.out
    assert "accuracy after the last round" in alone.out and "run folder: " in alone.out
    assert not (tmp_path / "alone" / "run-server-only").exists()

    said = fedfew(capsys, "run", config, "--out", tmp_path / "pair" / "run")
    own, base = Run.open(tmp_path / "pair" / "run"), Run.open(tmp_path / "pair" / "run-server-only")
    accuracies = [f"{100 * (run.accuracy() or 0):.1f} %" for run in (own, base)]
    assert f"{accuracies[0]} against {accuracies[1]} with your labels alone" in said.out
    row = next(line for line in said.out.splitlines() if line.startswith("accuracy after the last round"))
    assert row.split("round")[1].split("  ")[-1].strip() == accuracies[1] and accuracies[0] in row
    assert max(map(len, said.out.splitlines()[:12])) <= 80 and "--no-baseline" not in said.err

    again = fedfew(capsys, "run", config, "--set", "client.lr=0.01", "--out", tmp_path / "pair" / "other", "--json")
    assert again.json["baseline"] == str(base.path) and "with your labels alone" in again.json["verdict"]["sentence"]
    assert not (tmp_path / "pair" / "other-server-only").exists()


def test_a_method_without_a_pair_and_a_folder_that_is_taken_stop_nothing(
    config: Path, tmp_path: Path, capsys: Capture
) -> None:
    before = ("--set", "method.name=fedavg", "--set", "method.order=before")
    said = fedfew(capsys, "run", config, *before, "--out", tmp_path / "before" / "run")
    assert said.status == 0 and "Not compared with server-only training" in said.err
    assert "before the server's turn" in said.err and "labels alone" not in said.out
    (tmp_path / "full-server-only").mkdir()
    said = fedfew(capsys, "run", config, "--out", tmp_path / "full", "--json")
    assert said.json["baseline"] == str(tmp_path / "full-server-only-2")


def test_the_time_left_is_told_by_a_usual_round(
    config: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LONG", 0.0)
    short = ["--set", "method.name=server-only", "--set", "rounds=3", "--out", tmp_path / "run"]
    said = fedfew(capsys, "run", config, *short)
    pace = sum(Run.open(tmp_path / "run").rounds[1]["seconds"].values())  # the first may hold a warm-up
    assert said.err.count(" left (") == 1
    assert f"for the round left ({pace:.1f} s a round)" in said.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "quikc"], "E101", "Did you mean quick?"),
        (["run", "nothing.toml"], "E101", "neither a preset nor a readable TOML file"),
        (["run", "quick", "--set", "rounds"], "E102", "key=value"),
        (["run", "quick", "--set", "rounds=x"], "E103", "rounds = 'x'"),
        (["run", "quick", "--set", "partition.dirichlet_mu=1"], "E104", "did you mean partition.mu?"),
        (["run", "quick", "--set", "method.alpha=0.9"], "E106", "method.alpha"),
        (["run", "quick", "--set", "method.name=fedmatch", "--set", "aggregator.name=median"], "E107", "does not fit"),
        (["run", "quick", "--set", "clients=6000"], "E108", "Lower `clients`"),
        (["run", "quick", "--set", "labels=9000"], "E109", "9,000 labels"),
        (["resume", "nowhere"], "E302", "does not exist"),
        (["methods", "fedmx"], "E105", "fedmix"),
        (["explain", "E999"], "E105", "no code"),
        (["data", "fetch", "mnits"], "E105", ""),
        (["partition", "--dataset", "mini-mnist", "--mu", "a,b"], "E103", "--mu"),
        (["partition", "--dataset", "mini-mnist", "--clients", "100000"], "E108", ""),
    ],
)
def test_a_mistake_is_one_line_with_a_code_and_leaves_nothing(
    words: list[str], code: str, says: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = fedfew(capsys, *words)
    assert said.status == 2
    assert said.err.startswith(f"{code} "), said.err
    assert says in " ".join(said.err.split())
    assert "Traceback" not in said.err + said.out
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(config: Path, tmp_path: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "run", config, "--out", tmp_path)
    assert (said.status, said.err[:4]) == (2, "E301")
    assert [path.name for path in tmp_path.iterdir()] == ["lasting.toml"]


def test_debug_shows_where_a_fault_comes_from(capsys: Capture) -> None:
    from fedfew.core.errors import FedfewError

    with pytest.raises(FedfewError, match="E101"):
        fedfew(capsys, "run", "quikc", "--debug")


def test_rejected_updates_are_told_whatever_their_reason_says(
    config: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's words are text, not markup."""
    from fedfew.runtime.site import Sites

    plain = Sites.train

    def train(self: Sites, t: int, k: int, payload: Any) -> Any:
        return plain(self, t, k, payload) if t == 0 else Missing(k, Refusal.FAILED, "a [/bold] b [red]c")

    monkeypatch.setattr(Sites, "train", train)
    said = fedfew(capsys, "run", config, "--out", tmp_path / "run", "--json")
    assert said.status == 0, said.err
    assert said.err.count("left out, E408 client failed: a [/bold] b [red]c") == 3
    assert "round 2 skipped" in said.err
    assert records(tmp_path / "run")[1]["skipped"]


def test_what_was_mended_is_told_on_resume(config: Path, tmp_path: Path, capsys: Capture) -> None:
    fedfew(capsys, "run", config, "--out", tmp_path / "run")
    (tmp_path / "run" / "run.toml").write_text("rounds = 3")
    said = fedfew(capsys, "resume", tmp_path / "run", "--json")
    assert said.status == 0
    assert said.err.startswith("E309 ")
    assert "run.toml.changed" in said.err


def test_methods(capsys: Capture) -> None:
    said = fedfew(capsys, "methods", "--json")
    expected: dict[str, Any] = {
        "methods": list(METHODS),
        "aggregators": list(AGGREGATORS),
        "objectives": list(OBJECTIVES),
        "models": list(MODELS),
        "datasets": list(DATASETS),
        "partitions": list(PARTITIONS),
    }
    assert {key: value for key, value in said.json.items() if key not in ("fleets", "presets")} == expected
    assert {"inline", "pool"} <= set(said.json["fleets"])
    assert {"fedsemi", "rc-ssfl", "label-shift"} <= set(said.json["presets"])
    assert not set(METHODS) & set(said.json["presets"]), "a method is listed once"
    plain = fedfew(capsys, "methods").out
    assert all(name in plain for names in said.json.values() for name in names)


@pytest.mark.parametrize("name", [*METHODS, *AGGREGATORS, *OBJECTIVES, *MODELS, *PARTITIONS])
def test_each_name_is_explained_with_its_settings(name: str, capsys: Capture) -> None:
    about = fedfew(capsys, "methods", name, "--json").json
    assert about.keys() >= {"name", "kind", "settings"}
    plain = fedfew(capsys, "methods", name)
    assert plain.status == 0
    assert all(f"  {key} " in plain.out for key in about["settings"])
    if about["kind"] in ("method", "aggregator", "objective"):
        assert f"preset: fedfew run {about['preset']}" in plain.out


def test_a_preset_made_of_parts_is_explained(capsys: Capture) -> None:
    about = fedfew(capsys, "methods", "rc-ssfl", "--json").json
    assert (about["kind"], about["parts"]["compression"]["kind"]) == ("preset", "ternary")
    shown = fedfew(capsys, "methods", "rc-ssfl").out
    assert "fedfew run rc-ssfl" in shown and "ternary" in shown and "objective" in shown
    for name, method, used in (
        ("fedsemi", "fedsiam-mt", {"method", "aggregator"}),
        ("label-shift", "semifl", {"method", "aggregator", "vote"}),
    ):
        about = fedfew(capsys, "methods", name, "--json").json
        assert (about["kind"], about["parts"]["method"]["name"]) == ("preset", method)
        assert about["parts"].keys() == used, "a section that the method does not use is no part of it"


def test_partition(tmp_path: Path, capsys: Capture) -> None:
    words = ["partition", "--dataset", "mini-mnist", "--clients", 20, "--out", tmp_path, "--json"]
    one = fedfew(capsys, *words, "--mu", "0.1").json
    assert one.keys() == {"clients", "sizes", "R", "hash"}
    assert (one["clients"], len(one["sizes"]), sum(one["sizes"])) == (20, 20, 5_500 - 100 - 500)
    three = fedfew(capsys, *words, "--mu", "0.1,1,10").json
    assert three["hash"]["0.1"] == one["hash"]
    assert three["R"]["0.1"] > three["R"]["1"] > three["R"]["10"]
    assert {path.suffix for path in tmp_path.iterdir()} >= {".png", ".svg"}


def test_presets(capsys: Capture) -> None:
    found = fedfew(capsys, "presets", "--json").json["presets"]
    assert "quick" in found
    assert found["quick"].startswith("FedMix with FedFreq on the bundled digits")
    whole = fedfew(capsys, "presets", "median")
    assert tomllib.loads(whole.out) == load("median").document == fedfew(capsys, "presets", "median", "--json").json


def test_ctrl_c_in_the_warmup_says_what_is_kept_and_continues_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)
    monkeypatch.setattr(progress.Progress, "SECONDS", -1.0)
    run, real = tmp_path / "run", progress.Progress.move

    def interrupted(shown: Any, done: int, note: str = "") -> None:
        real(shown, done, note)
        if done == 4:
            raise KeyboardInterrupt

    words = ("--set", "method.name=fedfew", "--set", "method.warmup=6", "--set", "fleet.kind=inline")
    with monkeypatch.context() as patch:
        patch.setattr(progress.Progress, "move", interrupted)
        said = fedfew(capsys, "run", write_config(tmp_path), *words, "--set", "rounds=1", "--out", run)
    assert said.status == 130
    words_ = " ".join(said.err.split())
    assert "warm-up: 3 of 6 passes over the labels" in words_
    assert "stopped in the warm-up, after pass 3 of 6; everything up to there is saved" in words_
    assert fedfew(capsys, "ls", tmp_path, "--json").json["runs"][0]["state"] == "stopped"
    said = fedfew(capsys, "resume", run, "--json")
    passes = [line.split(" passes")[0] for line in said.err.splitlines() if line.startswith("warm-up")]
    assert passes == [f"warm-up: {n} of 6" for n in (3, 4, 5, 6)]
    assert "round 1/1: accuracy" in said.err


@pytest.mark.parametrize(("sign", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_a_polite_request_to_stop(sign: signal.Signals, workers: int, tmp_path: Path, capsys: Capture) -> None:
    """Stops at once, everything committed is kept, no worker is left, and the printed command continues the run."""
    run, config = tmp_path / "run", LASTING | {"fleet": {"kind": "pool", "workers": workers}}
    process = launch("run", write_config(tmp_path, config), "--out", run, "--json")
    children = under_way(process, run, rounds=2)
    assert len(children) == workers
    process.send_signal(sign)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    assert f"fedfew resume {run}" in err
    assert gone(children)
    done = committed(run)
    assert 2 <= done < LASTING["rounds"]
    assert f"stopped after round {done}" in " ".join(err.split())
    if sign == signal.SIGTERM:
        return  # the rest is the same
    whole = Experiment.load(LASTING, {"fleet.kind": "inline"}).run(tmp_path / "whole")
    said = fedfew(capsys, "resume", run, "--set", "fleet.kind=inline", "--json")
    assert said.status == 0
    assert all(": round " in line for line in said.err.strip().splitlines())  # no warning
    assert said.json["model_sha256"] == model_hash(whole)
    assert records(run) == records(whole)
    assert json.loads((run / "summary.json").read_text())["rounds"] == LASTING["rounds"]
