"""Manifests and model files that are sealed but lack something, or have it in another form: named faults."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.runs.crashes import copy_of, flip, resume
from tests.runtime.tiny_run import model_hash

from fedfew.core.errors import FedfewError
from fedfew.core.storage import open_sealed, sealed_json
from fedfew.runs.folder import RunFolder
from fedfew.runs.journal import EMPTY, Journal, begin, go_on, sealed
from fedfew.runs.model_file import read_weights
from fedfew.runs.run import Run
from fedfew.runs.session import reopen


def spoilt(content: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The content without one of its keys, or with a value of another form there; each with the key's path."""
    for key in content if depth and isinstance(content, dict) else ():
        rest = {name: value for name, value in content.items() if name != key}
        yield f"-{key}", rest
        yield f"~{key}", {**rest, key: [[]]}
        for path, inner in spoilt(content[key], depth - 1):
            yield f"{key}.{path}", {**content, key: inner}


def manifests(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("round-*.json"))


def test_a_newest_manifest_that_lacks_a_key_costs_one_round(stopped: Path, undisturbed: Run) -> None:
    body = open_sealed(manifests(stopped)[-1])
    needed = ("-round", "files.-state", "facts.-rounds")
    made = {path: content for path, content in spoilt(body, 2) if path in needed}
    assert made.keys() == set(needed)
    for path, content in made.items():
        folder = copy_of(stopped, "spoilt")
        manifests(folder)[-1].write_bytes(sealed_json(content))
        run, reported = resume(folder)
        assert [fault.code for fault in reported] == ["E303"], path
        assert (path == "facts.-rounds") == ("rounds.jsonl does not match" in reported[0].message), path
        assert model_hash(run) == model_hash(undisturbed), path


def test_no_spoilt_manifest_gives_a_traceback(stopped: Path) -> None:
    bodies = [open_sealed(path) for path in manifests(stopped)]
    assert all(bodies)
    for (path, first), (_, second) in zip(*(spoilt(body, 3) for body in bodies), strict=True):
        if path.startswith("facts.document.") and path not in ("facts.document.-fleet", "facts.document.~fleet"):
            continue  # the check of a config sees to the rest
        folder = copy_of(stopped, "spoilt")
        for place, content in zip(manifests(folder), (first, second), strict=True):
            place.write_bytes(sealed_json(content))
        with contextlib.suppress(FedfewError):
            reopen(folder, lambda fault: None)


@pytest.mark.parametrize("key", ["model", "classes", "shape", "mean", "std"])
def test_a_model_file_that_does_not_say_what_it_is(undisturbed: Run, tmp_path: Path, key: str) -> None:
    origin = undisturbed.path / "model.safetensors"
    with safe_open(origin, framework="pt") as file:
        about = json.loads(file.metadata()["fedfew"])
    del about[key]
    save_file(load_file(origin), tmp_path / "m.safetensors", metadata={"fedfew": json.dumps(about)})
    with pytest.raises(FedfewError, match=rf"^E309 .*{key}: Field required"):
        read_weights(tmp_path / "m.safetensors")


def test_the_journal_seals_what_was_written_not_what_is_found(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    folder = RunFolder(tmp_path)
    assert begin(folder) == EMPTY
    journal = go_on(folder, EMPTY)
    first = journal.append({"round": 1, "accuracy": 0.5})
    flip(tmp_path / "rounds.jsonl", 77)
    second = journal.append({"round": 2, "accuracy": None})
    expected = b'{"round": 1, "accuracy": 0.5}\n{"round": 2, "accuracy": null}\n'
    assert sealed(folder, second) == expected
    assert sealed(folder, first) == expected[: first["bytes"]]
    told: list[FedfewError] = []
    assert isinstance(go_on(folder, first, told.append), Journal)
    assert [fault.code for fault in told] == ["E309"]
    assert (tmp_path / "rounds.jsonl").read_bytes() == expected[: first["bytes"]]
    assert (tmp_path / "checkpoints" / "rounds.jsonl").read_bytes() == expected[: first["bytes"]]
    for place in (tmp_path / "rounds.jsonl", tmp_path / "checkpoints" / "rounds.jsonl"):
        flip(place, 3)
    assert sealed(folder, first) is None
    with pytest.raises(FedfewError, match="E309"):
        go_on(folder, first)
