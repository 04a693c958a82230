"""What every arm of a figure gains over training on the server's labels alone."""

from fedfew.runs.statistics import Interval
from fedfew.studies.bounds import other_recipe
from paper.arms import SERVER_ONLY
from paper.measures import difference, plus_minus, points, positive
from paper.plan import ArmKey
from paper.results import ArmResult, Results

Gain = Interval | str
"""A paired difference, or why none is shown."""


def gains(arms: Results) -> dict[ArmKey, Gain]:
    """For each arm with clients: its gain, or in which keys its server trains in another way than server-only's."""
    compared: dict[ArmKey, Gain] = {}
    for key, arm in arms.items():
        bound = _bound(arms, *key)
        if SERVER_ONLY in key[1] or not arm.runs or bound is None or not bound.runs:
            continue
        if differing := _other_keys(arm, bound):
            compared[key] = f"not compared: other {', '.join(differing)}"
        elif (gain := difference(arm, bound)) is not None:
            compared[key] = gain
    return compared


def _bound(arms: Results, panel: str, label: str) -> ArmResult | None:
    """Server-only of the same panel, and with as many labels where the figure varies them."""
    _, comma, labels = label.partition(", ")
    return arms.get((panel, f"{SERVER_ONLY}, {labels}")) if comma else arms.get((panel, SERVER_ONLY))


def _other_keys(arm: ArmResult, bound: ArmResult) -> list[str]:
    pairs = ((a, b) for a in arm.runs for b in bound.runs if a.seeds == b.seeds)
    return list(dict.fromkeys(key for a, b in pairs for key in other_recipe(a, b)))


def gain_sentence(key: ArmKey, gain: Gain) -> str:
    """Whether the arm beats the lower bound, in words."""
    panel, label = key
    if isinstance(gain, str):
        return f"{' '.join(filter(None, key))}: {gain}."
    words = {
        "yes": f"beats server-only training by {points(gain.mean)}",
        "no": f"is worse than server-only training by {points(-gain.mean)}",
    }.get(positive(gain)[0], f"does not differ significantly from server-only training ({points(gain.mean, True)})")
    seeds = f"{gain.n} seed{'s' * (gain.n > 1)}"
    return f"{label}{', ' + panel if panel else ''} {words}; {plus_minus(gain.se)}, {seeds}."


def gain_cell(gain: Gain) -> str:
    """The gain for a table."""
    if isinstance(gain, str):
        return gain
    words = {"yes": "better", "no": "**worse**"}.get(positive(gain)[0], "not significant")
    return f"{100 * gain.mean:+.1f} (SE {100 * (gain.se or 0.0):.1f}{', one seed' if gain.n == 1 else ''}), {words}"
