"""One Run: lazy parts, records of every version, and no file or record read more often than it must be."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interface.fedfew_command import record, written_run
from tests.runtime.tiny_run import tiny_run

from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.interface.page.library import Library
from fedfew.runs import reading
from fedfew.runs.folder import siblings
from fedfew.runs.run import Run
from fedfew.runs.session import reopen, start
from fedfew.runtime.record import RoundRecord


def test_of_a_file_that_grew_only_the_new_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written_run(tmp_path / "run", [record(n) for n in range(1, 101)], rounds=200)
    parsed, parse = list[int](), reading._records

    def counting(lines: list[bytes], place: Path) -> list[RoundRecord]:
        parsed.append(len(lines))
        return parse(lines, place)

    monkeypatch.setattr(reading, "_records", counting)
    run = Run.open(path)
    assert len(run.rounds) == 100
    with (path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(record(101)) + "\n" + json.dumps(record(102))[:20])
    assert len(run.rounds) == 100, "a run is seen as it was"
    assert len(run.again().rounds) == 101, "the line that is being written does not count"
    assert parsed == [100, 1]


def test_a_file_that_was_put_back_is_read_anew(tmp_path: Path) -> None:
    path = written_run(tmp_path / "run", [record(n) for n in (1, 2, 3)], rounds=5)
    run = Run.open(path)
    assert run.done == 3
    (path / "new").write_text("".join(json.dumps(record(n, accuracy=0.9)) + "\n" for n in (1, 2)))
    (path / "new").replace(path / "rounds.jsonl")
    assert [r["accuracy"] for r in run.again().rounds] == [0.9, 0.9]


def test_a_second_look_at_the_library_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        written_run(tmp_path / f"run{n}", [record(1)], seed=n)
    read: list[str] = []

    def counted(real: Any) -> Any:
        def reads(place: Path, *more: Any) -> Any:
            read.append(place.parent.name)
            return real(place, *more)

        return reads

    for name in ("read_config", "read_json", "read_rounds"):
        monkeypatch.setattr(reading, name, counted(getattr(reading, name)))
    library = Library(tmp_path.resolve())
    first = library.some(list(library.paths()), complete=True)
    assert set(read) == {f"run{n}" for n in range(5)}
    read.clear()
    assert library.some(list(library.paths()), complete=True) == first and read == []
    with (tmp_path / "run3" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(record(2)) + "\n")
    library.some(list(library.paths()), complete=True)
    assert set(read) == {"run3"}


@pytest.mark.parametrize(
    "text",
    [
        "a = 1\n[gate] # a note\nclip = 2\n",
        "[ gate ]\nclip = 2\n[gate2]\nb = 'x'\n",
        "['gate']\nclip = 2\n",
        "[a.b]\nc = 1\n[a.c]\nd = 2\n",
        "[[gate]]\nclip = 2\n[[gate]]\nclip = 3\n",
        "a = [\n1,\n2]\n[gate]\nlist = [\n[1],\n[2]]\n",
        'a = """\n[gate]\nb = 1\n"""\n',
        "a.b = 1\na.c = 2\n[gate]\nx.y = 1\nx.z = 2\n# end \u2028 = 3\n",
    ],
)
def test_a_config_is_read_as_toml_however_it_is_written(text: str) -> None:
    """Sections and lines are parsed one by one and remembered; what does not fit that is parsed as a whole."""
    for _ in range(2):
        assert reading._parsed(text) == tomllib.loads(text)


def test_a_run_that_goes_back_behind_its_end_is_not_finished(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    assert run.finished
    newest = max((run.path / "checkpoints").glob("round-*.json"))
    newest.write_text("{}")
    session = reopen(run.path, lambda fault: None)
    assert not Run.open(run.path).finished
    for _ in session.advance():
        pass
    assert Run.open(run.path).summary["model_sha256"] == run.summary["model_sha256"]


def test_a_finished_run_is_compared_by_its_summary_alone(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    whole = Run.open(run.path)
    expected = whole.with_(finished=False).accuracies
    assert (whole.accuracies, whole.done) == (expected, 2)
    assert whole.traffic("bytes_up") == sum(r["bytes_up"] for r in whole.rounds) / 2
    (run.path / "rounds.jsonl").unlink()
    assert Run.open(run.path).accuracies == expected


def test_a_run_is_a_table_and_a_picture_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(written_run(tmp_path / "<b>", [record(1), record(2, accuracy=0.25)], rounds=2))
    assert "&lt;b&gt;" in run._repr_html_() and "25.0 %" in run._repr_html_()
    pytest.importorskip("pandas")
    table = run.to_frame()
    assert list(table.index) == [1, 2] and list(table["accuracy"]) == [0.1, 0.25]
    assert list(table["seconds/server"]) == [0.1, 0.1]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedfewError, match="E112"):
        run.to_frame()


def test_only_runs_in_the_same_folder_are_siblings(tmp_path: Path) -> None:
    """A run in a home folder must not search all that is below it."""
    for name in ("one", "two", "deeper/three", ".preparing/four"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.toml").touch()
    assert siblings(tmp_path / "one") == [tmp_path / "two"]


def test_the_model_of_the_best_round_by_validation_is_kept_and_used(tmp_path: Path) -> None:
    config = load("quick", {"rounds": 3, "fleet.kind": "inline", "participation": 0.1, "server.lr": 0.3})
    session = start(config, tmp_path / "run")
    kept: dict[int, torch.Tensor] = {}
    for done in session.advance():
        kept[done["round"]] = session.state.evaluated.clone()
    run = Run.open(tmp_path / "run")
    assert run.best_round is not None
    assert torch.equal(run.using("best").network().snapshot(), kept[run.best_round])
    assert torch.equal(run.network().snapshot(), kept[3])
    with pytest.raises(FedfewError, match="E103"):
        run.using("first")
    (run.path / "model_best.safetensors").unlink()
    with pytest.raises(FedfewError, match="E310"):
        run.using("best").network()


def test_what_every_client_reported_is_a_frame(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", evaluate__by_client=True)
    frame, last = run.clients, run.records[-1]
    assert len(frame) == sum(len(r["cohort"]) for r in run.records)
    for update in last["updates"]:
        row = frame.loc[(last["round"], update["client"])]
        assert row["norm"] == update["norm"] and row["steps"] == update["metrics"]["steps"]
        assert row["weight"] == last["weights"][str(update["client"])]
    kept = sum(u["metrics"]["kept"] or 0 for u in last["updates"])
    assert kept == sum(last["pseudo_classes"])  # the counts by class are those of all clients together
    # accuracy by client: its mean over images is that of all clients' images
    held = [sum(row) for row in run.classes["clients"]]
    known = [(a, n) for a, n in zip(run.evaluation["clients"], held, strict=True) if a is not None]
    assert len(known) == sum(n > 0 for n in held) and all(round(a * n, 6) % 1 == 0 for a, n in known)
    assert run.summary["worst_clients"] == sorted(a for a, _ in known)[0]  # a tenth of up to ten clients is one
