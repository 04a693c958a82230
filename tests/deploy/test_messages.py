"""The two apps that Flower starts anew again and again stay light, and frames hold against what is no frame."""

import json
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfew.deploy.messages.frames import FrameError, encode, receive, send
from fedfew.deploy.messages.tensors import DTYPES, pack, unpack
from fedfew.deploy.site.client_app import SITE, ask_site


def test_the_client_app_imports_neither_torch_nor_data() -> None:
    look = "import sys, fedfew.deploy.site.client_app; print([m for m in ('torch', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def exchange(content: bytes, limit: int = 1 << 20) -> object:
    """What the receiver makes of some bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(content)
        ours.shutdown(socket.SHUT_WR)
        return receive(theirs, limit)


def test_a_frame_arrives_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    parts = {"b": b"12345", "empty": b"", "a": bytes(300_000)}
    with ours, theirs:
        threading.Thread(target=send, args=(ours, encode("é", parts)), daemon=True).start()
        head, found = receive(theirs)
    assert head == "é"
    assert list(found) == list(parts) and {name: bytes(part) for name, part in found.items()} == parts


def frame(index: bytes, length: int | None = None) -> bytes:
    return struct.pack(">4sI", b"FFW2", len(index) if length is None else length) + index


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b"[]", 10),
        frame(b"[]"),
        frame(b"{}"),
        frame(b"not json!"),
        frame(b"[" * 100_000),
        frame(b"", 1 << 31),
        frame(b'[["head", 4611686018427387904]]'),
        frame(b'[["head", 2], ["a", 9]]') + b"{}1234",
        frame(b'[["head", 2], ["a", -4]]') + b"{}1234",
        frame(b'[["head", 2], [4]]') + b"{}1234",
        frame(b'[["head", 2]]') + bytes([0xFF, 0xFF]),
    ],
)
def test_what_is_no_frame_is_refused(content: bytes) -> None:
    with pytest.raises(FrameError):
        exchange(content)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(FrameError):
        exchange(content)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=4,
    )
)
def test_tensors_come_back_with_shape_type_and_bits(kinds: dict[str, tuple[str, list[int]]]) -> None:
    rng = torch.Generator().manual_seed(0)
    tensors = {
        name: (10 * torch.rand(shape, generator=rng)).to(DTYPES[dtype]) for name, (dtype, shape) in kinds.items()
    }
    index, parts = pack({"one": tensors, "two": tensors})
    assert not parts  # all of them are small enough for the index
    for group in ("one", "two"):
        back = unpack(index[group], parts)
        assert list(back) == list(tensors)
        for name, tensor in tensors.items():
            assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)


def test_a_large_tensor_of_several_groups_is_one_array() -> None:
    large, small = torch.rand(5_000), torch.rand(3)
    index, arrays = pack({"one": {"a": large, "b": small}, "two": {"c": large}})
    assert len(arrays) == 1 and index["one"]["a"][0] == index["two"]["c"][0]
    assert torch.equal(unpack(index["two"], arrays)["c"], large) and torch.equal(
        unpack(index["one"], arrays)["b"], small
    )


def test_an_index_holds_only_a_few_small_tensors() -> None:
    index, arrays = pack({"one": {str(i): torch.rand(500) for i in range(9)}})
    assert len(arrays) == 6 and sum(len(json.dumps(entry)) for entry in index["one"].values()) < 9_000
    assert list(unpack(index["one"], arrays)) == [str(i) for i in range(9)]


HUGE = [["0", [float("inf")], "float32"], ["e", [0, 2**70], "float32"], ["e", [0] + [2**62] * 9, "float32"]]
INLINE = [
    ["base64:!", [2], "float32"],
    ["base64:AAAA", [2], "float32"],
    ["base64:é", [], "uint8"],
    [None, [2], "float32"],
]
WRONG = [["0", [3], "float32"], ["9", [2], "float32"], ["0", [2], "object"], ["0", [-2], "float32"], ["0", 2, "x"]]


@pytest.mark.parametrize("entry", [*WRONG, *INLINE, *HUGE, [1], None, "0"])
def test_an_index_that_claims_something_else_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="psi"):
        unpack({"psi": entry}, {"0": bytes(8), "e": b""})


def test_a_site_that_is_started_again_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site"
    monkeypatch.setenv(SITE, str(path))
    heard = []

    def site() -> None:
        sleep(0.3)  # nothing listens yet
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        for attempt in range(2):
            end, _ = listener.accept()
            with end:
                heard.append(receive(end)[0])
                if attempt:
                    send(end, encode("answer", {"0": b"psi"}))  # the first time it dies instead
        listener.close()

    threading.Thread(target=site, daemon=True).start()
    assert ask_site("question", {"0": b"omega"}) == ("answer", {"0": b"psi"})
    assert heard == ["question"] * 2
    with pytest.raises(FrameError):
        ask_site("", {}, patience=0.1)
