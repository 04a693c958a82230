"""Errors, settings, random streams, the types of a run, and the memory that a process keeps."""

import dataclasses
import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.crashes import Crash, disk, flip

import fedfew
import fedfew.core
from fedfew.core.environment import (
    KEPT,
    M_ARENA_MAX,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    OLDER,
    set_option,
)
from fedfew.core.errors import CODES, ConfigErrors, FedfewError
from fedfew.core.layout import Reply, nbytes
from fedfew.core.samples import LabeledSet
from fedfew.core.settings import Doc, Fraction, NonNegative, Setting, settings_of
from fedfew.core.storage import open_sealed, sealed_json, write_atomically
from fedfew.core.streams import numpy_stream, stream
from fedfew.core.types import ClientSite, OracleSite


def test_an_error_says_code_place_what_and_remedy() -> None:
    assert str(FedfewError("E106", "method.alpha", "α=2", "Lower it")) == "E106 method.alpha: α=2. Lower it"
    assert str(FedfewError("E106", "method.alpha", "α=2")).endswith(CODES["E106"].remedy)
    assert str(FedfewError("E106", "method.alpha", "α=2", "")) == "E106 method.alpha: α=2"


def test_several_faults_are_told_at_once_under_the_first_code() -> None:
    both = ConfigErrors([FedfewError("E104", "c.toml", "one", ""), FedfewError("E103", "c.toml", "two", "")])
    assert both.code == "E104" and str(both) == "E104 c.toml: one\nE103 c.toml: two"


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained_and_in_a_known_family(code: str) -> None:
    explanation = CODES[code]
    assert code[0] == "E" and code[1] in "12345" and len(code) == 4
    assert explanation.title and explanation.cause.endswith(".") and explanation.remedy.endswith(".")


def test_every_code_is_raised_somewhere_and_every_raised_code_is_explained() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(fedfew.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"\bE[1-5]\d\d\b", source)) == set(CODES)


def test_settings_are_the_annotated_parameters_of_functions_and_dataclasses() -> None:
    def rule(vectors: list[float], *, cap: Annotated[NonNegative, Doc("the cap")] = 2.0, plain: int = 1) -> None: ...

    @dataclass(frozen=True)
    class Method:
        part: int
        share: Annotated[Fraction, Doc("the share")] = 0.5

    found = settings_of(rule)
    assert list(found) == ["cap"]
    assert isinstance(found["cap"], Setting) and (found["cap"].default, found["cap"].doc) == (2.0, "the cap")
    assert {name: (s.default, s.doc) for name, s in settings_of(Method).items()} == {"share": (0.5, "the share")}


parts = st.one_of(st.text(max_size=4), st.sampled_from(["client", "a/b", "a", "b", "%2F", "/"]), st.integers(0, 99))
paths = st.tuples(st.integers(0, 99), st.lists(parts, max_size=4))


def draws(generator: torch.Generator) -> list[int]:
    return torch.randint(2**62, (4,), generator=generator).tolist()


@settings(max_examples=100, deadline=None)
@given(paths, paths)
def test_equal_paths_give_equal_draws_and_different_paths_different_ones(
    one: tuple[int, list[str | int]], other: tuple[int, list[str | int]]
) -> None:
    same = one[0] == other[0] and [str(p) for p in one[1]] == [str(p) for p in other[1]]
    assert (draws(stream(one[0], *one[1])) == draws(stream(other[0], *other[1]))) == same
    bits = [numpy_stream(seed, *path).integers(2**62, size=4).tolist() for seed, path in (one, other)]
    assert (bits[0] == bits[1]) == same
    assert draws(stream(one[0], *one[1])) == draws(stream(one[0], *one[1]))


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draws(stream(0, "client", 3, 7))
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(2)
    torch.rand(5)
    np.random.default_rng(3)
    assert draws(stream(0, "client", 3, 7)) == first


def test_the_seed_is_the_hash_of_the_path() -> None:
    text = b"7/client/3/12"
    seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    assert draws(stream(7, "client", 3, 12)) == draws(torch.Generator().manual_seed(seed))


CORE = Path(fedfew.core.__file__).parent


def test_a_client_site_has_images_and_no_labels() -> None:
    fields = {f.name for f in dataclasses.fields(ClientSite)}
    assert fields == {"client", "network", "samples", "classes", "memory", "own_view", "fewest"}
    assert "LabeledSet" not in " ".join(str(f.type) for f in dataclasses.fields(ClientSite))
    assert LabeledSet in [f.type for f in dataclasses.fields(OracleSite)]
    assert not issubclass(OracleSite, ClientSite) and not issubclass(ClientSite, OracleSite)


def type_check(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """mypy on a snippet together with the core alone, so that it takes a second."""
    snippet = folder / "snippet.py"
    snippet.write_text(source, "utf-8")
    files = [str(CORE / name) for name in ("types.py", "layout.py", "network.py", "errors.py", "samples.py")]
    options = ["--follow-imports=skip", "--explicit-package-bases", "--cache-dir", str(folder / "cache")]
    command = [sys.executable, "-m", "mypy", "--config-file=", *options, *files, str(snippet)]
    return subprocess.run(command, capture_output=True, text=True, env={"MYPYPATH": str(CORE.parent.parent)})


def test_the_type_checker_stops_labels_at_the_door(tmp_path: Path) -> None:
    source = """
from fedfew.core.types import Method, ClientSite, OracleSite, Payload
import torch

def samples(site: ClientSite) -> object:
    return site.samples

def labels(site: ClientSite) -> object:
    return site.labels

def labeled(site: ClientSite) -> object:
    return site.labeled

def smuggle(method: Method, payload: Payload, site: OracleSite, rng: torch.Generator) -> object:
    return method.train_client(payload, site, rng)
"""
    found = type_check(source, tmp_path).stdout.splitlines()
    errors = [line for line in found if "error" in line and "snippet.py" in line]
    assert len(errors) == 3, found
    assert '"ClientSite" has no attribute "labels"' in errors[0]
    assert '"ClientSite" has no attribute "labeled"' in errors[1]
    assert 'incompatible type "OracleSite"; expected "ClientSite"' in errors[2]


def test_bytes_are_counted_as_they_travel() -> None:
    reply: Reply = {
        "index": torch.zeros(5, dtype=torch.int32),
        "change": torch.zeros(5),
        "lr": torch.zeros((), dtype=torch.float64),
    }
    assert nbytes(reply) == 5 * 4 + 5 * 4 + 8


class Glibc:
    """Takes thresholds up to a limit, as mallopt does."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, dict[int, int]()

    def __call__(self, option: int, value: int) -> int:
        if option == M_MMAP_THRESHOLD and value > self.limit:
            return 0
        self.taken[option] = value
        return 1


def test_new_and_old_versions_and_none() -> None:
    for limit, threshold in ((KEPT, KEPT), (OLDER, OLDER)):
        glibc = Glibc(limit)
        set_option(glibc)
        assert glibc.taken == {M_MMAP_THRESHOLD: threshold, M_TRIM_THRESHOLD: KEPT, M_ARENA_MAX: 1}
    refusing = Glibc(0)
    set_option(refusing)
    assert refusing.taken == {}
    set_option(None)


@pytest.mark.parametrize("content", [{"weights": {6: 0.5, 10: 0.25, 7: 0.25}}, {"ü": [1e-05, None, True]}, {}])
def test_sealed_json_opens_and_every_flipped_bit_shuts_it(content: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    raw = sealed_json(content)
    path.write_bytes(raw)
    assert open_sealed(path) is not None
    for bit in range(0, 8 * len(raw), 7):
        flip(path, bit)
        assert open_sealed(path) is None, bit
        path.write_bytes(raw)
    assert open_sealed(tmp_path / "nothing") is None


def test_an_atomic_write_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with disk() as watched:
        write_atomically(path, b"old")
    seen = set()
    for done in range(watched.done):
        with disk(stop_at=done), pytest.raises(Crash):
            write_atomically(path, b"new")
        seen.add(path.read_bytes())
        path.write_bytes(b"old")
    assert seen == {b"old", b"new"}
