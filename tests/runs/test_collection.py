"""An archive holds the records of finished runs, gives them back to the byte, and is not trusted."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from tests.interface.fedfew_command import fedfew
from tests.interface.test_track import finish, half_done

import fedfew as library
from fedfew.core.errors import FedfewError
from fedfew.runs import collection
from fedfew.runs.collection import read_archive, unpack, write_archive
from fedfew.runs.folder import find_runs
from fedfew.runs.run import Run

RECORDS = ("run.toml", "environment.json", "classes.json", "rounds.jsonl", "summary.json", "evaluation.json")


@pytest.fixture
def done(tmp_path: Path) -> Path:
    run = half_done(tmp_path / "runs" / "a" / "done")
    finish(run)
    return run


def test_it_takes_finished_runs_and_gives_them_back_to_the_byte(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, done: Path
) -> None:
    begun, to = half_done(tmp_path / "runs" / "begun"), tmp_path / "new" / "kept.jsonl.xz"
    said = fedfew(capsys, "archive", tmp_path / "runs", "--to", to)
    assert said.status == 0, said.err
    assert f"left out, not finished: {begun}" in said.out.replace("\n", "")
    (copy,), original = read_archive(to), Run.open(done)
    assert copy.name == "a/done" and copy.finished and copy.state == "finished"
    for part in ("document", "environment", "classes", "records", "summary", "evaluation", "alarms", "accuracies"):
        assert getattr(copy, part) == getattr(original, part), part
    assert copy.judged is None, "the probabilities of the test images stay with the run"
    said = fedfew(capsys, "archive", to, "--to", tmp_path / "again", "--json")
    assert said.json == {"to": str(tmp_path / "again"), "copied": 1, "not_finished": []}
    (folder,) = find_runs(tmp_path / "again")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {n: (done / n).read_bytes() for n in RECORDS}
    assert "E301" in fedfew(capsys, "archive", to, "--to", tmp_path / "again").err


def test_commands_read_it_like_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, done: Path) -> None:
    to = tmp_path / "kept.jsonl.xz"
    write_archive(to, {"one": Run.open(done)})
    rows = [fedfew(capsys, "compare", source, "--json").json["rows"][0] for source in (to, done)]
    assert [row.pop("runs") for row in rows] == [[str(to / "one")], [str(done)]]
    assert rows[0] == rows[1]
    assert library.compare([to]).rows[0].accuracy == library.compare([done]).rows[0].accuracy
    (listed,) = fedfew(capsys, "ls", to, "--json").json["runs"]
    assert (listed["state"], listed["accuracy"]) == ("finished", Run.open(done).accuracy())
    assert Path(fedfew(capsys, "report", to, "--json").json["report"]) == tmp_path / "kept.html"


def test_runs_of_an_archive_stay_and_its_bytes_do_not_depend_on_the_order(tmp_path: Path, done: Path) -> None:
    run, one, other = Run.open(done), tmp_path / "one.jsonl.xz", tmp_path / "other.jsonl.xz"
    write_archive(one, {"b": run})
    write_archive(one, {"a": run})
    write_archive(other, {"a": run, "b": run})
    assert one.read_bytes() == other.read_bytes()
    assert [found.name for found in read_archive(one)] == ["a", "b"]


def test_what_is_no_archive_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, done: Path) -> None:
    assert "E103" in fedfew(capsys, "archive", done, "--to", tmp_path / "kept").err
    assert "E302" in fedfew(capsys, "archive", tmp_path / "nothing", "--to", tmp_path / "kept.jsonl.xz").err
    assert "E302" in fedfew(capsys, "compare", tmp_path / "nothing.jsonl.xz").err
    assert not list(tmp_path.glob("*.xz"))


def altered(path: Path, **parts: Any) -> Path:
    line = json.loads(lzma.decompress(path.read_bytes()))
    path.write_bytes(lzma.compress(json.dumps(line | parts).encode()))
    return path


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"run": "../elsewhere"}, "E205"),
        ({"run": "/elsewhere"}, "E205"),
        ({"run": ""}, "E205"),
        ({"run": 3}, "E309"),
        ({"rounds": [{"round": -1}]}, "E309"),
        ({"summary": {"rounds": "many"}}, "E309"),
        ({"config": {}}, "E309"),
    ],
)
def test_lines_that_no_run_writes_are_refused(tmp_path: Path, done: Path, parts: dict[str, Any], code: str) -> None:
    path = tmp_path / "kept.jsonl.xz"
    write_archive(path, {"one": Run.open(done)})
    with pytest.raises(FedfewError, match=code):
        unpack(altered(path, **parts), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_and_inflated_files_are_refused(tmp_path: Path, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.jsonl.xz"
    write_archive(path, {"one": Run.open(done)})
    whole = path.read_bytes()
    for content in (b"no archive", whole[:-40], whole[:100] + bytes(10) + whole[110:], lzma.compress(b"{")):
        path.write_bytes(content)
        with pytest.raises(FedfewError, match=r"E309|E205"):
            read_archive(path)
    path.write_bytes(whole)
    monkeypatch.setattr(collection, "MOST", 100)
    with pytest.raises(FedfewError, match=r"E205.*inflate"):
        read_archive(path)
