"""Robust rules and FedNova against independent NumPy implementations and numbers worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedfew.aggregators import AGGREGATORS, robust
from fedfew.aggregators.robust import fltrust, krum, trimmed_mean
from fedfew.aggregators.weighted import blocks, fednova, uniform
from fedfew.config.checks import krum_misfit
from fedfew.core.network import Network
from fedfew.core.types import Contribution, ServerState
from fedfew.training.sgd import Hooks, LocalSGD, Pull, descend
from fedfew.training.updates import aggregate_active, with_momentum

ORIGIN = torch.zeros(2)


def parts_of(
    rows: object, *, examples: list[int] | None = None, steps: list[float] | None = None
) -> list[Contribution]:
    vectors = torch.tensor(rows, dtype=torch.float32)
    sizes = examples or [1] * len(vectors)
    works = steps or [1.0] * len(vectors)
    return [Contribution(k, v, n, 1, a) for k, (v, n, a) in enumerate(zip(vectors, sizes, works, strict=True))]


# Parity with NumPy, written from the papers alone


def numpy_trimmed_mean(table: np.ndarray, trim: float) -> np.ndarray:
    cut = int(np.floor(np.float32(trim) * len(table)))
    result = np.empty(table.shape[1])
    for column in range(table.shape[1]):
        values = sorted(table[:, column])
        result[column] = np.mean(values[cut : len(values) - cut])
    return result


def numpy_krum(table: np.ndarray, f: int, select: int) -> np.ndarray:
    scores = []
    for i, row in enumerate(table):
        others = [np.sum((row - other) ** 2) for j, other in enumerate(table) if j != i]
        scores.append(np.sum(np.sort(others)[: len(table) - f - 2]))
    best = table[np.argsort(scores, kind="stable")[:select]]
    return np.asarray(best.mean(axis=0))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 40), st.sampled_from([0.0, 0.125, 0.25, 0.375]),
    st.integers(0, 1), st.integers(1, 3),
)  # fmt: skip
def test_rules_are_numpys(seed: int, m: int, d: int, trim: float, f: int, select: int) -> None:
    table = np.random.default_rng(seed).normal(size=(m, d)).astype(np.float32)
    parts, zeros = parts_of(table), torch.zeros(d)
    middle = AGGREGATORS["median"](parts, zeros, zeros)
    assert middle.vector.numpy() == pytest.approx(np.median(table, axis=0), rel=1e-6) and middle.weights == {}
    trimmed = trimmed_mean(parts, zeros, zeros, trim=trim).vector
    assert trimmed.numpy() == pytest.approx(numpy_trimmed_mean(table, trim), rel=1e-5, abs=1e-6)
    if m >= 5:  # fewer cannot have a liar among them
        best = krum(parts, zeros, zeros, faulty=f, select=select)
        assert best.vector.numpy() == pytest.approx(numpy_krum(table, f, select), rel=1e-5, abs=1e-6)
        assert len(best.weights) == select


def test_rules_do_not_depend_on_the_size_of_blocks() -> None:
    """More coordinates than one block holds."""
    table = np.random.default_rng(0).normal(size=(5, (1 << 16) + 3)).astype(np.float32)
    zeros = torch.zeros(table.shape[1])
    ours = trimmed_mean(parts_of(table), zeros, zeros, trim=0.2).vector
    assert ours.numpy() == pytest.approx(np.sort(table, 0)[1:4].mean(0), rel=1e-4, abs=1e-6)


# What the rules are for


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum"])
def test_one_liar_of_five_changes_little(name: str) -> None:
    honest = [[1.0, 2.0], [1.1, 2.1], [0.9, 1.9], [1.0, 2.0]]
    result = AGGREGATORS[name](parts_of([*honest, [1e6, -1e6]]), ORIGIN, ORIGIN).vector
    assert result.numpy() == pytest.approx([1.0, 2.0], abs=0.11)


def test_trimmed_mean_by_hand_and_with_a_share_that_floats_miss() -> None:
    assert trimmed_mean(
        parts_of([[1.0], [2.0], [9.0], [4.0], [-7.0]]), ORIGIN, ORIGIN
    ).vector.tolist() == pytest.approx([(1 + 2 + 4) / 3])
    hundred = [[float(i == 0) * 1000] for i in range(100)]  # 0.29 · 100 = 28.999999999999996 must trim 29, not 28
    assert trimmed_mean(parts_of(hundred), ORIGIN, ORIGIN, trim=0.29).vector.item() == 0


def test_krum_lowers_f_when_clients_are_missing() -> None:
    for m in (1, 2, 3, 4):
        result = krum(parts_of([[float(i)] for i in range(m)]), ORIGIN, ORIGIN, faulty=5, select=2)
        assert torch.isfinite(result.vector).all()
        assert 1 <= len(result.weights) <= 2


def test_multi_krum_by_hand() -> None:
    parts = parts_of([[0.0], [1.0], [3.0], [9.0], [50.0]])
    # with m = 5, f = 1 two neighbours count: 1 + 9, 1 + 4, 4 + 9, 36 + 64, 41² + 47²
    assert krum(parts, ORIGIN, ORIGIN).vector.item() == 1.0
    assert krum(parts, ORIGIN, ORIGIN).weights == {1: 1.0}
    best = krum(parts, ORIGIN, ORIGIN, faulty=1, select=2)
    assert best.vector.item() == 0.5
    assert best.weights == {0: 0.5, 1: 0.5}
    assert len(krum(parts, ORIGIN, ORIGIN, faulty=1, select=5).weights) == 4  # never all, if one may be hostile


def test_distances_add_up_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0]])
    monkeypatch.setattr(robust, "blocks", lambda parts: blocks(parts, entries=2))  # one coordinate at a time
    table = robust.squared_distances(parts)
    assert table.tolist() == [[0.0, 9.0], [9.0, 0.0]]
    assert table.dtype == torch.float64


def test_krum_says_what_it_needs() -> None:
    assert krum_misfit(5, faulty=1, select=1) == ""
    assert krum_misfit(5, faulty=1, select=4) == ""
    assert "at least 7" in krum_misfit(6, faulty=2, select=1)
    assert "at most 4" in krum_misfit(5, faulty=1, select=5)


# FLTrust


def test_fltrust_by_hand() -> None:
    omega, sigma = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 1.0])  # the server went (2, 0)
    same, slanted, against = [11.0, 1.0], [2.0, 2.0], [0.0, 1.0]  # changes (10, 0), (1, 1), (−1, 0)
    result = fltrust(parts_of([same, slanted, against]), omega, sigma)
    cos = 1 / 2**0.5
    whole = 1 + cos
    # each change is brought to length 2, then weighted by its cosine; who goes the other way counts nothing
    x = 1 + (1 * 2 + cos * 2 * cos) / whole
    y = 1 + (cos * 2 * cos) / whole
    assert result.vector.tolist() == pytest.approx([x, y])
    assert result.weights == pytest.approx({0: 1 / whole, 1: cos / whole, 2: 0.0})


@pytest.mark.parametrize(
    ("sigma", "rows", "stretch", "vector", "weights"),
    [
        ([3.0, 0], [[0.0, 0], [5.0, 0], [0.0, 2], [-1.0, 0]], True, [3.0, 0], [0, 1, 0, 0]),  # one did not move
        ([1.0, 0], [[-1.0, 0], [0.0, 0]], True, [1.0, 0], [0, 0]),  # nobody is trusted: the server's own
        ([1.0, 0], [[0.1, 0], [10.0, 0]], True, [1.0, 0], [0.5, 0.5]),
        ([1.0, 0], [[0.1, 0], [10.0, 0]], False, [0.55, 0], [0.5, 0.5]),  # a short change is left as it is
    ],
)
def test_whom_fltrust_trusts(
    sigma: list[float], rows: list[list[float]], stretch: bool, vector: list[float], weights: list[float]
) -> None:
    result = fltrust(parts_of(rows), ORIGIN, torch.tensor(sigma), stretch=stretch)
    assert result.vector.tolist() == pytest.approx(vector)
    assert result.weights == pytest.approx(dict(enumerate(weights)))


# FedNova


def test_fednova_by_hand() -> None:
    omega = torch.tensor([0.0])
    parts = parts_of([[-4.0], [-10.0], [7.0]], examples=[1, 3, 5], steps=[2.0, 10.0, 0.0])
    # d = (4/2, 10/10) = (2, 1); p = (1/4, 3/4), the third took no step; Σpa = 2/4 + 30/4 = 8; ω = −8·(2/4 + 3/4)
    result = fednova(parts, omega, omega)
    assert result.vector.item() == pytest.approx(-8 * (0.25 * 2 + 0.75 * 1))
    assert result.weights == pytest.approx({0: 8 * 0.25 / 2, 1: 8 * 0.75 / 10})


def test_fednova_with_equal_steps_is_fedavg() -> None:
    omega = torch.tensor([3.0, -1.0])
    parts = parts_of([[1.0, 5.0], [2.0, 2.0]], examples=[30, 10], steps=[7.0, 7.0])
    plain = AGGREGATORS["fedavg"](parts, omega, omega).vector
    assert torch.allclose(fednova(parts, omega, omega).vector, plain)


def test_fednova_leaves_omega_where_nobody_took_a_step() -> None:
    omega = torch.tensor([3.0])
    result = fednova(parts_of([[9.0]], steps=[0.0]), omega, omega)
    assert result.vector.item() == 3.0
    assert result.vector is not omega
    assert result.weights == {}


def test_fednova_sums_in_double_and_answers_in_single_precision() -> None:
    omega = torch.zeros(1)
    parts = parts_of([[3e8], [1.0], [-3e8]], examples=[1, 1, 1], steps=[1.0, 1.0, 1.0])
    result = fednova(parts, omega, omega).vector
    assert result.dtype == torch.float32
    assert result.item() == pytest.approx(1 / 3)


def line() -> Network:
    """A network of one weight without bias, whose gradient for the loss 5·w is 5 everywhere."""
    return Network.of(nn.Linear(1, 1, bias=False))


@pytest.mark.parametrize("prox", [0.0, 0.7])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_work_is_what_sgd_makes_of_a_constant_gradient(momentum: float, nesterov: bool, prox: float) -> None:
    network = line()
    start = network.snapshot()
    sgd = LocalSGD(epochs=3, batch=2, lr=0.05, momentum=momentum, nesterov=nesterov)
    pull = Pull(start, prox / 2)
    steps = descend(
        network, sgd, 0.05, 7, lambda _: 5 * network.module.weight.sum(),  # type: ignore[operator]
        torch.Generator().manual_seed(0), Hooks(pull.add_gradient),
    )  # fmt: skip
    assert steps == 12
    moved = float(start - network.snapshot())
    assert moved == pytest.approx(0.05 * 5 * sgd.work(steps, 0.05, prox), rel=1e-5)


def test_work_of_the_three_formulas() -> None:
    assert LocalSGD().work(6) == 6
    rho, c, a = 0.5, 0.0, 0.0
    for _ in range(6):
        c = rho * c + 1
        a += c
    assert LocalSGD(momentum=rho).work(6) == pytest.approx(a)
    eta_mu, a = 0.1 * 2, 0.0
    for _ in range(6):
        a = (1 - eta_mu) * a + 1
    assert LocalSGD().work(6, 0.1, 2) == pytest.approx(a)


# Server momentum, and who is left out


def test_server_momentum_by_hand() -> None:
    start, first, second = torch.tensor([10.0, 4.0]), torch.tensor([8.0, 5.0]), torch.tensor([6.0, 6.0])
    omega, kept = with_momentum(ServerState(0, start, start), first, 0.5, 1)
    assert omega.tolist() == [8.0, 5.0]  # the first step is the plain one
    omega, kept = with_momentum(ServerState(1, omega, omega, extra=kept), second, 0.5, 1)
    assert kept["velocity"].tolist() == [0.5 * 2 + 2]
    assert omega.tolist() == [8.0 - 3.0, 6.0]  # the statistic in place 1 has no momentum


def test_clients_without_a_step_are_left_out() -> None:
    zero = torch.zeros(1)
    mean, active = aggregate_active(uniform, parts_of([[1.0], [2.0], [3.0]], steps=[1.0, 0.0, 4.0]), zero, zero)
    assert [part.client for part in active] == [0, 2] and mean.vector.item() == 2
    nobody, active = aggregate_active(uniform, parts_of([[1.0]], steps=[0.0]), zero, zero + 7)
    assert not active and nobody.vector.item() == 7 and nobody.weights == {}


@pytest.mark.parametrize(("statuses", "mean"), [((0.9, 0.6), 0.4 / 0.5), ((1.0, 1.0), 0.5)])
def test_status_weighs_the_unsure_more(statuses: tuple[float, float], mean: float) -> None:
    parts = [Contribution(k, torch.tensor([float(k)]), 1, 1, status=status) for k, status in enumerate(statuses)]
    assert AGGREGATORS["status"](parts, ORIGIN, ORIGIN).vector.item() == pytest.approx(mean)
