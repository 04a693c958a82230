"""The privacy a run gave: ε for its δ, from the rounds in which a client was heard."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from fedfew.core.extras import require
from fedfew.runtime.record import RoundRecord


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """ε of ``rounds`` Gaussian mechanisms of multiplier z/2: any two data sets of a client move its update by ≤ 2C.

    No amplification by sampling is claimed: the server, against which this holds, knows whom it asked.
    """
    require("privacy", "privacy.noise")
    from dp_accounting import get_epsilon_gaussian

    # rounds compose to one Gaussian mechanism with 1/√rounds of the multiplier
    return float(get_epsilon_gaussian(noise / 2 / sqrt(rounds), delta)) if rounds else 0.0


def privacy_of(records: Sequence[RoundRecord], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the summary says about privacy; None where it is off.

    Every time a client was asked counts, used or not: its update may have left.
    """
    if not settings["clip"]:
        return None
    asked = Counter(k for record in records for k in record["cohort"])
    most = max(asked.values(), default=0)
    value = epsilon(settings["noise"], most, settings["delta"]) if settings["noise"] else None
    return dict(settings) | {"rounds_of_a_client": most, "epsilon": None if value is None else float(f"{value:.6g}")}
