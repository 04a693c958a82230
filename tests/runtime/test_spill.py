"""Replies that do not fit into memory: the same bits from disk; and no copies or memory that grow with the clients."""

import errno
import gc
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.runtime.tiny_run import CASES, SMALL, play, tiny, tiny_parts
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedfew.aggregators import AGGREGATORS
from fedfew.config.parts import assemble, local_fleet
from fedfew.core.errors import FedfewError
from fedfew.core.spill import IN_MEMORY, ReplySpill
from fedfew.core.types import ClientUpdate, Contribution

REPLY = {
    "psi": torch.arange(1000, dtype=torch.float32),
    "index": torch.arange(7, dtype=torch.int32),
    "mask": torch.tensor([[True, False], [False, True]]),
    "half": torch.linspace(0, 1, 5, dtype=torch.float16),
    "none": torch.empty(0, 3),
    "number": torch.tensor(2.5, dtype=torch.float64),
}


def open_files(folder: Path) -> list[str]:
    """The files below a folder that this process has open, those without a name too."""
    links = list(Path("/proc/self/fd").iterdir())
    return [target for link in links if (target := os.path.realpath(link)).startswith(str(folder))]


def test_replies_stay_in_memory_while_there_is_room_and_come_back_as_they_were_from_disk() -> None:
    size = sum(t.numel() * t.element_size() for t in REPLY.values())
    spill = ReplySpill(limit=2 * size)
    kept = [spill.put(REPLY) for _ in range(4)]
    assert kept[0] is kept[1] is REPLY
    assert spill.stored == 2 * size
    for stored in kept[2:]:
        assert stored is not REPLY
        assert list(stored) == list(REPLY)
        for name, tensor in REPLY.items():
            assert stored[name].dtype == tensor.dtype
            assert torch.equal(stored[name], tensor)


def test_a_vector_of_another_layout_is_stored_by_its_values() -> None:
    square = torch.arange(6.0).view(2, 3)
    stored = ReplySpill(0).put({"turned": square.T})
    assert torch.equal(stored["turned"], square.T)


def test_the_file_has_no_name_and_goes_with_the_last_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spill = ReplySpill(0)
    stored = spill.put(REPLY)
    assert list(tmp_path.iterdir()) == []
    assert len(open_files(tmp_path)) > 0
    del spill
    gc.collect()
    assert torch.equal(stored["psi"], REPLY["psi"])
    del stored
    gc.collect()
    assert open_files(tmp_path) == []


def test_a_disk_that_cannot_take_the_replies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(FedfewError, match=r"E305.*do not fit"):
        ReplySpill(0).put(REPLY)


def test_a_file_that_could_not_be_made_spoils_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.core.spill.FILE", 1 << 13)  # one reply in a file
    spill = ReplySpill(0)
    first, turned = spill.put(REPLY), {"psi": -REPLY["psi"]}
    with monkeypatch.context() as full:
        full.setattr("fedfew.core.spill.mmap.mmap", Mock(side_effect=OSError(errno.ENOMEM, "no memory")))
        with pytest.raises(FedfewError, match=r"E305.*no memory"):
            spill.put(REPLY)
    assert torch.equal(spill.put(turned)["psi"], turned["psi"])
    assert torch.equal(first["psi"], REPLY["psi"])


KINDS = ("fedmix", "fedmatch", "ds-fl", "scaffold", "fedmoments", "compressed")
"""One for each kind of reply: a model, sparse entries, probabilities, two vectors, sums, encoded tensors."""


@pytest.mark.parametrize("case", KINDS)
def test_every_kind_of_reply_gives_the_same_bits_from_disk(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, fleet = tiny_parts(**SMALL, **CASES[case])
    first = parts.network.snapshot()
    expected = play(parts, fleet, 2)
    monkeypatch.setattr("fedfew.runtime.exchange.ReplySpill", partial(ReplySpill, 0))
    parts.network.load(first)
    fleet.remember({})
    for (state, record), (wanted, told) in zip(play(parts, fleet, 2), expected, strict=True):
        assert torch.equal(state.omega, wanted.omega)
        assert {**record, "seconds": 0} == {**told, "seconds": 0}


@pytest.mark.parametrize("rule", AGGREGATORS)
def test_every_aggregator_gives_the_same_bits_from_disk(rule: str) -> None:
    rng = torch.Generator().manual_seed(0)
    omega, sigma, *vectors = torch.randn(9, 3000, generator=rng)
    spill = ReplySpill(limit=3 * 4 * 3000)  # three in memory, four on disk
    updates = [ClientUpdate(k, spill.put({"psi": vector}), k + 1) for k, vector in enumerate(vectors)]
    assert spill.stored == 4 * 4 * 3000
    here = [Contribution(k, vector, k + 1, k + 1, k + 1.0) for k, vector in enumerate(vectors)]
    there = [Contribution(k, u.reply["psi"], k + 1, k + 1, k + 1.0) for k, u in enumerate(updates)]
    one, other = AGGREGATORS[rule](here, omega, sigma), AGGREGATORS[rule](there, omega, sigma)
    assert torch.equal(one.vector, other.vector)
    assert one.weights == other.weights


MEGABYTE = 1 << 20
SLACK = 48 * MEGABYTE
"""Pieces that are looked at together (a sort of 2²⁰ numbers takes some 20 MB), and what the allocator keeps back."""


def peak_growth(m: int, size: int, rule: str) -> int:
    command = [sys.executable, "-m", "tests.runtime.peak_memory", str(m), str(size), rule]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    ("rule", "size"), [("fedfreq", 130_000), pytest.param("trimmed-mean", 100_000, marks=pytest.mark.slow)]
)
def test_the_servers_memory_is_bounded_however_many_clients_answer(rule: str, size: int) -> None:
    """The replies of a round are 312 and 240 MB; two rounds are run, and the first one's must be gone in the second.

    What is in memory may need twice its bytes, because the memory between the replies is not always used again.
    """
    assert IN_MEMORY // 2 < peak_growth(600, size, rule) <= 2 * IN_MEMORY + SLACK < 600 * 4 * size


LIKE_THE_REPLY = 6
"""Vectors made for each client: the reply itself, its change for the gate's norm, and for the record of the round its
change again and three in torch's cosine with the server's step."""
FOR_THE_ROUND = 11
"""σ and its copy out of the network (2: ω_0 too, as a run begins); αψ + βσ + γω (5); the sum in float64 and in float32
(2); σ − ω and ω′ − ω for the record (2)."""


class VectorCount(TorchDispatchMode):
    """Counts the tensors of a model's length that are made anew, and the bytes copied into ones that were there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.made: Counter[str] = Counter()
        self.copied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if all(result.alias_info is None for result in func._schema.returns):
            self.made[str(func)] += sum(isinstance(t, Tensor) and t.numel() == self.size for t in tree_leaves(out))
        if func.overloadpacket is torch.ops.aten.copy_ and args[0].numel() == self.size:
            self.copied += args[0].numel() * args[0].element_size()
        return out


@cache
def count(kind: str, m: int) -> tuple[VectorCount, int]:
    """One round of FedMix with m clients, counted in the server's process; the model's bytes."""
    parts = assemble(tiny(fleet__kind=kind, fleet__workers=1, clients=12, participation=m / 12, method__threshold=0.1))
    with closing(local_fleet(parts)) as fleet:
        counting = VectorCount(parts.network.layout.size)
        with counting:
            play(parts, fleet, 1)
    return counting, 4 * parts.network.layout.size


@pytest.mark.parametrize("kind", ["inline", "pool"])
def test_vectors_made_in_a_round(kind: str) -> None:
    """Training makes none, on either side: it works in place. With inline clients that is counted here as well."""
    for m in (2, 5):
        made = count(kind, m)[0].made
        assert sum(made.values()) <= FOR_THE_ROUND + LIKE_THE_REPLY * m, (m, made)


def test_bytes_copied_in_a_round() -> None:
    """Into the network ω before the server trains, ω again and the clients' ψ to score them, and for each client ω.

    With a pool ω and σ go into shared memory, once for all clients, and ω and ψ to whoever scores them. The screen
    loads ω once, and a quarter of every client's way.
    """
    for m in (2, 5):
        counting, vector = count("inline", m)
        assert counting.copied == (3 + m + 1 + m) * vector
        counting, vector = count("pool", m)
        assert counting.copied == (5 + 1 + m) * vector
        assert counting.made["aten.clone.default"] == m, "a reply is copied out of shared memory once"
