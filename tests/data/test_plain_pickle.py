"""The reader of CIFAR's pickles: reads what they hold, and never runs what a forged one asks for."""

import contextlib
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.archives_for_tests import python2_batch

from fedfew.data.plain_pickle import NotPlainError, read_plain

IMAGES = np.random.default_rng(0).integers(0, 256, (300, 3, 4, 4)).astype(np.uint8)
LABELS = np.arange(300) % 10


def test_reads_a_batch_as_python_2_wrote_it() -> None:
    content = python2_batch(IMAGES, LABELS)
    read = read_plain(content)
    assert sorted(read) == ["batch_label", "data", "filenames", "labels"]
    assert read["labels"] == LABELS.tolist()
    assert read["filenames"][7] == "image_s_000007.png"
    assert (read["data"] == IMAGES.reshape(300, 48)).all()
    # The test's own writer is right if the standard library reads the same from it.
    standard = pickle.loads(content, encoding="bytes")  # noqa: S301 - made three lines above
    assert (standard[b"data"] == read["data"]).all()
    assert standard[b"labels"] == read["labels"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL))
def test_reads_plain_dicts_of_any_protocol(protocol: int) -> None:
    value = {
        "data": IMAGES.reshape(300, -1),
        b"labels": [1, 2, 70_000, -1, 2**80],
        "nested": ({"a": (1,), 3: [True, False, b"x", "é"]}, (), (1, 2), (1, 2, 3), [4], {}),
        "wide": np.arange(6, dtype=">i4").reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    read = read_plain(pickle.dumps(value, protocol))
    assert sorted(read) == ["columns", "data", "labels", "nested", "wide"]
    for name in ("data", "wide", "columns"):
        assert (read[name] == value[name]).all()
    assert read["labels"] == value[b"labels"]
    assert read["nested"] == value["nested"]


class Trap:
    """Unpickling this with the standard library would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_never_runs_what_a_forged_file_asks_for(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"data": Trap(tmp_path / "trapped"), "labels": []}, protocol)
    with pytest.raises(NotPlainError, match="mkdir"):
        read_plain(content)
    assert not (tmp_path / "trapped").exists()
    pickle.loads(content)  # noqa: S301 - shows that the trap is a real one
    assert (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"}",
        b"K\x01.",
        b"\x80\x02}(U\x01aK\x01K\x02u.",
        b"}u.",
        b"K\x01K\x02s.",
        b"}K\x01)K\x02s.",
        b"}(]K\x01u.",
        b"(ios\nsystem\n.",
        b"cos\nsystem\n(U\x02idtR.",
        b"cbuiltins\neval\n(U\x011tR.",
        b"cnumpy\nndarray\n(K\x01tR.",
        b"cnumpy\nload\n.",
        b"cnumpy\ndtype\nU\x01O\x85R.",
        b"cnumpy\ndtype\n)R.",
        b"c_codecs\nencode\nU\x01aU\x03rot\x86R.",
        b"cnumpy\ndtype\nU\x02u1\x85R(K\x03U\x01?tb.",
        b"}U\x01ah\x05s.",
        b"}\x81.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"(cos\nsystem\nU\x02ido.",
        b"}P1\n.",
        b"U\x05ab",
        b"}S'\\d'\nK\x01s.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.",
        b"L" + b"9" * 5000 + b"L\n.",
    ],
)
def test_refuses_everything_else(content: bytes) -> None:
    with pytest.raises(NotPlainError):
        read_plain(content)


def reconstructed(shape: bytes, data: bytes, dtype: bytes = b"cnumpy\ndtype\nU\x02u1\x85R") -> bytes:
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return b"}U\x04data" + array + b"(K\x01" + shape + dtype + b"\x89" + data + b"tbs."


def test_arrays_must_fit_their_content() -> None:
    assert read_plain(reconstructed(b"K\x03\x85", b"U\x03abc"))["data"].tolist() == [97, 98, 99]
    for shape, data in (
        (b"K\x04\x85", b"U\x03abc"),
        (b"J\xff\xff\xff\xffJ\xfd\xff\xff\xff\x86", b"U\x03abc"),
        (b"U\x013\x85", b"U\x03abc"),
        (b"(K\x01K\x01K\x01K\x01K\x03t", b"U\x03abc"),
        (b"K\x03\x85", b"]"),
    ):
        with pytest.raises(NotPlainError):
            read_plain(reconstructed(shape, data))
    with pytest.raises(NotPlainError):
        read_plain(reconstructed(b"K\x03\x85", b"U\x03abc", dtype=b"K\x01"))


def test_deep_nesting_does_no_harm() -> None:
    deep = b"}U\x01a)" + b"\x85" * 200_000 + b"s."
    assert list(read_plain(deep)) == ["a"]
    with pytest.raises(NotPlainError):
        read_plain(b"})" + b"\x85" * 200_000 + b"K\x01s.")
    circle = b"}U\x01a]q\x00h\x00as."  # a list that holds itself
    assert len(read_plain(circle)["a"]) == 1


@given(st.integers(0, 2**31), st.integers(1, 8))
@settings(max_examples=500, deadline=None)
def test_damaged_files_are_read_or_refused(seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    content = bytearray(python2_batch(IMAGES[:2, :, :2, :2], LABELS[:2]))  # few pixels, so that most hits are opcodes
    for at in rng.integers(0, len(content), changes):
        content[at] = rng.integers(256)
    with contextlib.suppress(NotPlainError):
        read_plain(bytes(content))


def test_the_official_opcodes_are_those_of_the_writer() -> None:
    used = {opcode.name for opcode, _, _ in pickletools.genops(python2_batch(IMAGES, LABELS))}
    assert {"SHORT_BINSTRING", "BINSTRING", "GLOBAL", "REDUCE", "BUILD", "SETITEMS", "APPENDS"} <= used
