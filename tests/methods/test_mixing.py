"""ω_{t+1} = αψ + βσ + γω_t (Eq. 9) and its condition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.tiny import generator

import fedfew
from fedfew.core.errors import FedfewError
from fedfew.methods.fedmix import mix

PSI, SIGMA, OMEGA = (torch.tensor([x]) for x in (5.0, 20.0, 10.0))


def test_the_papers_weights_on_5_20_10() -> None:
    # 0.5·5 + 0.3·20 + 0.2·10 = 2.5 + 6 + 2
    assert mix(PSI, SIGMA, OMEGA, 0.5, 0.3, 0.2).item() == pytest.approx(10.5)
    # were α and β exchanged it would be 0.3·5 + 0.5·20 + 2 = 13.5, were β and γ 2.5 + 4 + 3 = 9.5
    assert mix(PSI, SIGMA, OMEGA, 0.3, 0.5, 0.2).item() == pytest.approx(13.5)
    assert mix(PSI, SIGMA, OMEGA, 0.5, 0.2, 0.3).item() == pytest.approx(9.5)
    assert fedfew.mix is mix


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
def test_gamma_only_damps_the_way_towards_psi_and_sigma(first: float, second: float, seed: int) -> None:
    low, high = sorted((first, second))
    alpha, beta = low, high - low
    psi, sigma, omega = torch.randn(3, 6, dtype=torch.float64, generator=generator(seed))

    step = mix(psi, sigma, omega, alpha, beta, 1 - high) - omega

    torch.testing.assert_close(step, alpha * (psi - omega) + beta * (sigma - omega))


@pytest.mark.parametrize(
    "weights",
    [
        (0.5, 0.3, 0.3),
        (0.5, 0.3, 0.1),
        (1.2, -0.2, 0.0),
        (0.5, 0.6, -0.1),
        (float("nan"), 0.5, 0.5),
        (0.5, 0.5, float("inf")),
    ],
)
def test_weights_that_do_not_sum_to_one_are_refused(weights: tuple[float, float, float]) -> None:
    with pytest.raises(FedfewError, match=r"E106 method.alpha, method.beta, method.gamma: .* not to 1 with all ≥ 0"):
        mix(PSI, SIGMA, OMEGA, *weights)
