"""Codecs there and back, error feedback over rounds, and compressed methods through the real round loop and gate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedfew.aggregators import AGGREGATORS
from fedfew.core.layout import nbytes
from fedfew.core.network import Network
from fedfew.core.types import ClientSite, ClientUpdate, Method, Missing
from fedfew.data.samples import Images
from fedfew.methods.fedavg import FedAvg
from fedfew.methods.fedmatch import FedMatch
from fedfew.methods.fedsiam import FedSiam
from fedfew.objectives.pseudo_labels import PseudoLabel
from fedfew.runtime.exchange import Clients, checker
from fedfew.runtime.gate import Gate
from fedfew.runtime.wire import Wire
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised
from fedfew.transforms import vectors
from fedfew.transforms.compression import BLOCK, Compressed, Half, Int8, Ternary, TopK, VectorCodec

CODECS: dict[str, VectorCodec] = {"float16": Half(), "int8": Int8(), "top-k": TopK(0.1), "ternary": Ternary()}
SGD = LocalSGD(epochs=1, batch=4, lr=0.05)


def drawn(size: int, seed: int = 0) -> Tensor:
    """Entries of very different scale, as the layers of a network have."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.normal(size=size) * 10.0 ** rng.integers(-4, 1, size)).astype(np.float32))


# Codecs


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(CODECS)), st.integers(1, 3 * BLOCK), st.integers(0, 1000))
def test_what_is_encoded_has_the_form_the_gate_expects(name: str, size: int, seed: int) -> None:
    codec, vector = CODECS[name], drawn(size, seed)
    parts, form = codec.encode(vector), codec.form(size)
    assert set(parts) == set(form)
    for part, expected in form.items():
        assert tuple(parts[part].shape) == expected.shape
        assert parts[part].dtype == expected.dtype
    back = codec.decode(parts, size)
    assert back.shape == vector.shape
    assert back.dtype == torch.float32
    assert float((back - vector).norm()) <= float(vector.norm()) * (1 + 1e-6), "never further off than nothing at all"


def test_half_is_half_precision_and_does_not_overflow() -> None:
    back = Half().decode(Half().encode(torch.tensor([1.0001, 1e9, -1e9])), 3)
    assert back.tolist() == [1.0, 65504.0, -65504.0]


def test_int8_is_within_half_a_step_of_each_block() -> None:
    vector = drawn(2 * BLOCK + 7)
    back = Int8().decode(Int8().encode(vector), len(vector))
    for start in range(0, len(vector), BLOCK):
        block = slice(start, start + BLOCK)
        step = float(vector[block].abs().max()) / 127
        assert float((back[block] - vector[block]).abs().max()) <= step / 2 * 1.001
    assert Int8().decode(Int8().encode(torch.zeros(5)), 5).tolist() == [0.0] * 5


def test_top_k_keeps_the_largest_exactly() -> None:
    vector = torch.tensor([0.1, -5.0, 0.0, 3.0, -0.2, 3.0])
    parts = TopK(0.34).encode(vector)
    assert parts["index"].tolist() == [1, 3], "of the two threes the first"
    assert TopK(0.34).decode(parts, 6).tolist() == [0, -5, 0, 3, 0, 0]
    assert TopK(1e-9).count(6) == 1
    assert torch.equal(TopK(1.0).decode(TopK(1.0).encode(vector), 6), vector)


def test_ternary_by_hand() -> None:
    vector = torch.tensor([1.0, -3.0, 0.1, 2.0])
    # the mean size is 6.1/4 = 1.525, the bound 0.7 of it = 1.0675: −3 and 2 are above, their mean size is 2.5
    parts = Ternary().encode(vector)
    assert Ternary().decode(parts, 4).tolist() == [0.0, -2.5, 0.0, 2.5]
    digits = [1, 0, 1, 2]
    assert parts["code"].tolist() == [sum(d * 3**i for i, d in enumerate(digits))]


def test_ternary_survives_bytes_that_nobody_encodes() -> None:
    back = Ternary().decode({"code": torch.tensor([255], dtype=torch.uint8), "scale": torch.tensor([1.0])}, 5)
    assert set(back.tolist()) <= {-1.0, 0.0, 1.0}


def test_bytes_on_the_wire() -> None:
    d = 10_000
    plain = 4 * d
    sizes = {name: nbytes(codec.encode(drawn(d))) for name, codec in CODECS.items()}
    blocks = -(-d // BLOCK)
    assert sizes == {
        "float16": plain // 2,
        "int8": d + 4 * blocks,
        "top-k": 8 * d // 10,
        "ternary": d // 5 + 4 * blocks,
    }


# Around a method


def net() -> Network:
    return Network.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))


def normed() -> Network:
    return Network.of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3)))


def fedavg(**options: Any) -> FedAvg:
    return FedAvg(Supervised(SGD), SGD, AGGREGATORS["fedavg"], PseudoLabel(threshold=0.0), **options)


def compressed(method: Method, codec: VectorCodec, *, feedback: bool = True) -> Wire:
    return Wire(method, [Compressed(codec, feedback)])


def site_of(network: Network) -> ClientSite:
    images = torch.randint(0, 256, (8, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return ClientSite(0, network, Images(images, flips=False), 3)


def payload_of(network: Network, seed: int = 0) -> dict[str, Tensor]:
    omega = network.snapshot() + 0.1 * torch.randn(network.layout.size, generator=torch.Generator().manual_seed(seed))
    return {"omega": omega.abs(), "lr": torch.tensor(0.05), "progress": torch.tensor(0.0)}


def code_of(answer: ClientUpdate | Missing) -> str:
    assert isinstance(answer, Missing)
    return str(answer.code)


@pytest.mark.parametrize("make", [net, normed])
@pytest.mark.parametrize("name", CODECS)
def test_feedback_gives_back_what_encoding_lost(name: str, make: Any) -> None:
    network = make()
    site, sent, n = site_of(network), payload_of(network), network.layout.trainable
    method = compressed(fedavg(), CODECS[name])
    plain = fedavg().train_client(sent, site_of(network), torch.Generator().manual_seed(4)).reply["psi"] - sent["omega"]
    carried = torch.zeros(n)
    for _ in range(3):  # the same training three times: what is sent and what is kept add up to it each time
        trained = method.train_client(sent, site, torch.Generator().manual_seed(4))
        update = method.decode(ClientUpdate(0, trained.reply, 8, trained.metrics), sent, network.layout)
        got = update.reply["psi"] - sent["omega"]
        assert torch.allclose(got[:n] + site.memory["residual.psi"], plain[:n] + carried, atol=1e-5)
        assert torch.allclose(got[n:], plain[n:], atol=1e-6), "statistics travel as they are"
        carried = site.memory["residual.psi"].clone()


def test_without_feedback_nothing_is_kept() -> None:
    network = net()
    site = site_of(network)
    compressed(fedavg(), Ternary(), feedback=False).train_client(payload_of(network), site, torch.Generator())
    assert site.memory == {}


def test_a_diverged_client_does_not_remember_it_for_ever() -> None:
    network = net()
    site, sent = site_of(network), payload_of(network)
    method = compressed(replace(fedavg(), client=LocalSGD(epochs=3, batch=1, lr=1e30)), Int8())
    method.train_client(sent | {"lr": torch.tensor(1e38)}, site, torch.Generator().manual_seed(0))
    assert torch.isfinite(site.memory["residual.psi"]).all()


@pytest.mark.parametrize("name", CODECS)
def test_the_gate_sees_the_encoded_and_the_decoded(name: str) -> None:
    network = net()
    site, sent = site_of(network), payload_of(network)
    method = compressed(fedavg(), CODECS[name])
    trained = method.train_client(sent, site, torch.Generator().manual_seed(4))
    update = ClientUpdate(0, trained.reply, 8, trained.metrics)
    open_gate, narrow = Clients(0, 1, 1), Clients(0, 1, 1, gate=Gate(max_norm=1e-6))
    passed = checker(open_gate, method, network.layout)(update, sent)
    assert isinstance(passed, ClientUpdate)
    assert set(passed.reply) == {"psi"}
    refused = checker(narrow, method, network.layout)(update, sent)
    assert code_of(refused) == "E406", "the norm bound holds for what the bytes mean"
    plain = ClientUpdate(0, {"psi": sent["omega"]}, 8)
    unencoded = checker(open_gate, method, network.layout)(plain, sent)
    assert code_of(unencoded) == "E401"


def test_hostile_indices_and_scales_are_refused() -> None:
    network = net()
    sent, gate = payload_of(network), Clients(0, 1, 1)
    method = compressed(fedavg(), TopK(0.02))
    k = TopK(0.02).count(network.layout.trainable)
    value = torch.ones(k)
    for index in (torch.zeros(k, dtype=torch.int32), torch.arange(k, dtype=torch.int32) + network.layout.size):
        reply = {"psi.index": index, "psi.value": value}
        fault = checker(gate, method, network.layout)(ClientUpdate(0, reply, 8), sent)
        assert code_of(fault) == "E412"
    form = Int8().form(network.layout.trainable)
    reply = {f"psi.{part}": torch.zeros([d or 0 for d in e.shape], dtype=e.dtype) for part, e in form.items()}
    reply["psi.scale"] += float("nan")
    fault = checker(gate, compressed(fedavg(), Int8()), network.layout)(ClientUpdate(0, reply, 8), sent)
    assert code_of(fault) == "E404"


def test_every_vector_of_a_reply_is_encoded() -> None:
    siam = FedSiam(Supervised(SGD), SGD, AGGREGATORS["fedavg"])
    schema = compressed(siam, Half()).reply_schema(net().layout)
    assert sorted(schema) == ["psi.half", "target.half"]


def test_which_methods_send_vectors() -> None:
    assert vectors(fedavg().reply_schema(net().layout)) == ["psi"]
    assert vectors(FedMatch(Supervised(SGD), SGD, AGGREGATORS["uniform"]).reply_schema(net().layout)) == []
