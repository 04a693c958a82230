"""Clients trained in one stack: the same models as one by one but for rounding, in fewer passes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.every_method import CASES, SMALL
from tests.runtime.tiny_run import play, tiny, tiny_parts
from torch import Tensor, nn

from fedfew.build.parts import Parts, assemble
from fedfew.core.engine import Engine
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.network import Network, Pixels
from fedfew.core.types import ClientUpdate, Fleet
from fedfew.runs.fleets import fleet_of
from fedfew.runtime.record import left_out
from fedfew.runtime.site import InlineFleet
from fedfew.runtime.stack import Stack

TOLERANCE = 1e-6
"""Relative to the norm: float32 has 24 bits, and two short rounds do not carry a rounding far."""
UNEQUAL = {"clients": 5, "participation": 1.0, "partition__skew": 1.0}
STACKABLE = {name: case for name, case in CASES.items() if case.get("model__norm") != "batch"}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@contextmanager
def counted(network: Network) -> Iterator[list[int]]:
    """The number of images of every pass through the module."""
    passes: list[int] = []
    handle = network.module.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    yield passes
    handle.remove()


def outcome(**settings: Any) -> tuple[Tensor, list[Any]]:
    parts, fleet = tiny_parts(**settings)
    rounds = play(parts, fleet, 2)
    return rounds[-1][0].omega, [record for _, record in rounds]


@pytest.mark.parametrize("case", STACKABLE)
def test_every_method_gives_the_same_model_but_for_rounding(case: str) -> None:
    alone, told = outcome(**SMALL, **CASES[case])
    together, records = outcome(**SMALL, **CASES[case], engine__stack=2)
    assert float((alone - together).norm() / alone.norm()) < TOLERANCE
    for record, expected in zip(records, told, strict=True):
        assert left_out(record) == left_out(expected) == []
        assert record["coverage"] == expected["coverage"]
        assert [u["client"] for u in record["updates"]] == [u["client"] for u in expected["updates"]]


def clients_round(parts: Parts, omega: Tensor, fleet: Fleet) -> dict[int, ClientUpdate]:
    state = parts.algorithm.start(omega)
    answers = fleet.train(0, {k: parts.algorithm.broadcast(state, k) for k in range(5)})
    return {answer.client: answer for answer in answers if isinstance(answer, ClientUpdate)}


def test_a_stack_of_unequal_clients_takes_the_passes_of_its_longest_one() -> None:
    """FedMix with every image confident: three passes a step, whoever has a batch left; 5 clients in stacks of 3."""
    settings = UNEQUAL | {"method__threshold": 0.0}
    parts, inline = tiny_parts(**settings)
    stacked = fleet_of(assemble(tiny(**settings, engine__stack=3)), Path())
    assert isinstance(stacked, InlineFleet)
    assert stacked.stack is not None
    steps = sorted((-(-len(parts.federation.partition.of(k)) // 10) for k in range(5)), reverse=True)
    assert steps[0] > steps[-1]
    omega = parts.network.snapshot()
    with counted(parts.network) as passes:
        answers = clients_round(parts, omega, inline)
    assert len(passes) == 3 * sum(steps)
    with counted(stacked.sites.network) as passes:
        together = clients_round(parts, omega, stacked)
    assert len(passes) == 3 * (steps[0] + steps[3])
    assert answers.keys() == together.keys() == set(range(5))
    for k, answer in answers.items():
        psi, found = answer.reply["psi"], together[k].reply["psi"]
        assert float((psi - found).norm()) < TOLERANCE * float(psi.norm())
        assert (answer.examples, answer.metrics) == (together[k].examples, together[k].metrics)


def test_the_same_bits_again() -> None:
    settings = UNEQUAL | {"engine__stack": 4, "method__threshold": 0.1}
    first, again = outcome(**settings), outcome(**settings)
    assert torch.equal(first[0], again[0])


def small_stack(size: int = 3) -> Stack:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    return Stack(Network.of(module, Pixels.unit(1), Engine(device="cpu")), size)


IMAGES = torch.arange(24, dtype=torch.uint8).view(6, 1, 2, 2)


def test_a_client_that_fails_or_needs_no_pass_does_not_hold_up_the_others() -> None:
    def fails(network: Network) -> Tensor:
        network(IMAGES[:2])
        raise ValueError("odd images")

    def guarded(network: Network) -> Tensor:
        try:
            return fails(network)
        except ValueError as error:
            return torch.tensor(float(len(str(error))))

    def learns(network: Network) -> Tensor:
        for count in (3, 2, 5):
            network.gradient.zero_()
            network.backward(network(IMAGES[:count]).square().mean())
            with torch.no_grad():
                network.vector.sub_(network.gradient, alpha=0.1)
        return network.snapshot()

    stack = small_stack()
    failed, idle, learned = stack.train([guarded, lambda network: network.snapshot(), learns])
    assert float(failed) == len("odd images")
    alone = small_stack(1).train([learns])[0]
    torch.testing.assert_close(learned, alone)
    assert not torch.allclose(learned, idle)
    with pytest.raises(ValueError, match="odd images"):
        stack.train([learns, fails])


def test_a_pass_that_fails_fails_in_every_client_that_asked() -> None:
    def asks(network: Network) -> str:
        try:
            network(IMAGES[:, :, :1])  # two pixels, where the layer wants four
        except RuntimeError as error:
            return str(error)
        return ""

    first, second, third = small_stack().train([asks, asks, lambda network: f"{len(network.snapshot())}"])
    assert first == second != ""
    assert third == "10"  # 2×4 weights and 2 biases


def test_what_interrupts_the_round_ends_the_clients() -> None:
    stack = small_stack()

    def interrupted(*_: Any) -> Tensor:
        raise KeyboardInterrupt

    stack._forward = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        stack.train([lambda network: network(IMAGES), lambda network: network(IMAGES)])
    assert len(small_stack().train([lambda network: network(IMAGES)])[0]) == 6


def test_what_cannot_be_stacked_is_refused() -> None:
    faults: dict[str, dict[str, Any]] = {
        "no workers": {"fleet__kind": "pool", "fleet__workers": 2},
        "not compiled": {"engine__compile": True},
        "batch norm": {"model__norm": "batch"},
    }
    for what, settings in faults.items():
        with pytest.raises(ConfigErrors, match=rf"E113 config: engine\.stack: .*{what}"):
            tiny(engine__stack=2, **settings)
    modules = {"batch norm": nn.BatchNorm1d(4), "cannot be stacked": nn.Dropout()}
    for what, layer in modules.items():
        network = Network.of(nn.Sequential(nn.Flatten(), layer, nn.Linear(4, 2)), Pixels.unit(1))
        with pytest.raises(FedfewError, match=rf"E113 engine\.stack: .*{what}"):
            Stack(network, 2).check((1, 2, 2))
