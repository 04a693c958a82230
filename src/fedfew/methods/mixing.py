"""The paper's mixing equation and its condition."""

from torch import Tensor

from fedfew.core.errors import FedfewError


def check_mix(alpha: float, beta: float, gamma: float) -> None:
    """Refuse weights that are negative or do not sum to 1."""
    if not (min(alpha, beta, gamma) >= 0 and abs(alpha + beta + gamma - 1) <= 1e-6):  # so that NaN is refused too
        given = f"α={alpha:g}, β={beta:g}, γ={gamma:g} sum to {alpha + beta + gamma:g}"
        raise FedfewError("E106", "method.alpha, method.beta, method.gamma", f"{given}, not to 1 with all ≥ 0")


def mix(psi: Tensor, sigma: Tensor, omega: Tensor, alpha: float, beta: float, gamma: float) -> Tensor:
    """ω_{t+1} = α ψ_{t+1} + β σ_{t+1} + γ ω_t (Eq. 9)."""
    check_mix(alpha, beta, gamma)
    return alpha * psi + beta * sigma + gamma * omega
