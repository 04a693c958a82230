"""The two apps that Flower starts anew again and again stay light, and frames hold against what is no frame."""

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

from fedfew.deploy.messages.frames import FrameError, receive, send
from fedfew.deploy.messages.tensors import DTYPES, pack, unpack
from fedfew.deploy.site.client_app import SITE, ask_site


@pytest.mark.parametrize("app", ["site.client_app", "server.server_app"])
def test_an_app_imports_neither_torch_nor_data(app: str) -> None:
    look = f"import sys, fedfew.deploy.{app}; print([m for m in ('torch', 'scipy', 'PIL') if m in sys.modules])"
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
        threading.Thread(target=send, args=(ours, {"x": [1, "é"]}, parts), daemon=True).start()
        head, found = receive(theirs)
    assert head == {"x": [1, "é"]}
    assert list(found) == list(parts) and {name: bytes(part) for name, part in found.items()} == parts


START = struct.Struct(">4sIQ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        START.pack(b"FFW1", 10, 5) + b"{}",
        START.pack(b"FFW1", 2, 0) + b"{}",
        START.pack(b"FFW1", 9, 0) + b"not json!",
        START.pack(b"FFW1", 1 << 31, 0),
        START.pack(b"FFW1", 2, 1 << 62),
        START.pack(b"FFW1", 30, 4) + b'{"head": {}, "parts": [["a",9]]}'[:30],
        START.pack(b"FFW1", 33, 4) + b'{"head": {}, "parts": [["a", -4]]}'[:33],
        START.pack(b"FFW1", 31, 4) + b'{"head": 3, "parts": [["a", 4]]}'[:31] + b"1234",
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
    assert len(parts) <= len(tensors) + sum(not t.numel() for t in tensors.values())
    for group in ("one", "two"):
        back = unpack(index[group], parts)
        assert list(back) == list(tensors)
        for name, tensor in tensors.items():
            assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)


HUGE = [["0", [float("inf")], "float32"], ["e", [0, 2**70], "float32"], ["e", [0] + [2**62] * 9, "float32"]]
WRONG = [["0", [3], "float32"], ["9", [2], "float32"], ["0", [2], "object"], ["0", [-2], "float32"], ["0", 2, "x"]]


@pytest.mark.parametrize("entry", [*WRONG, *HUGE, [1], None, "0"])
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
                    send(end, {"round": 3}, {"0": b"psi"})  # the first time it dies instead
        listener.close()

    threading.Thread(target=site, daemon=True).start()
    head, parts = ask_site({"ask": 1}, {"0": b"omega"})
    assert head == {"round": 3} and bytes(parts["0"]) == b"psi" and heard == [{"ask": 1}] * 2
    with pytest.raises(FrameError):
        ask_site({}, {}, patience=0.1)
