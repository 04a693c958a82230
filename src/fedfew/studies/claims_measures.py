"""Numbers with their standard errors, and what can be said with them: yes, no, or undecided.

A standard error is sd/√n over the seeds; for one seed it is that of drawing the test images, √(p(1−p)/N). A difference
is paired by seed and counts as real where its 95 % interval by Student's t leaves out zero, as in ``fedfew compare``.
The paper's own numbers come from one run on 2,000 images, so they carry an error of their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Literal

from scipy.special import stdtrit

from fedfew.studies.outcomes import Outcome, spread
from fedfew.studies.reproduce_results import ArmResult

Agrees = Literal["yes", "no", "undecided", "no runs yet"]
IMAGES = 2_000
"""Test images of the paper, and of our runs with its split."""
BEYOND = 2.0


@dataclass(frozen=True)
class Measure:
    """A mean over n seeds, its standard deviation, and its standard error."""

    value: float
    sd: float | None
    n: int
    error: float
    partial: bool = False

    @property
    def margin(self) -> float:
        """Half of its 95 % interval."""
        return (BEYOND if self.n < 2 else float(stdtrit(self.n - 1, 0.975))) * self.error


@dataclass(frozen=True)
class Verdict:
    """One claim of the paper beside what we got."""

    claim: str
    source: str
    got: str
    agrees: Agrees
    words: str
    error: float | None = None
    seeds: int = 0
    partial: bool = False


def sampling(p: float, images: int = IMAGES) -> float:
    """Standard error of an accuracy p told on so many images."""
    return math.sqrt(max(p * (1 - p), 0.0) / images)


def level(arm: ArmResult) -> Measure | None:
    """The accuracy of an arm."""
    values = list(arm.values.values())
    if not values:
        return None
    centre, sd = spread(values)
    n = len(values)
    return Measure(centre, sd, n, sampling(centre) if sd is None else sd / math.sqrt(n), _open(arm))


def difference(first: ArmResult, second: ArmResult) -> Measure | None:
    """How much more accurate the first arm is, over the seeds that both have."""
    return paired(first.values, second.values, _open(first) or _open(second))


def paired(
    first: Mapping[tuple[int, int], float], second: Mapping[tuple[int, int], float], partial: bool = False
) -> Measure | None:
    """The mean difference of accuracies with the same seeds."""
    both = sorted(first.keys() & second.keys())
    if not both:
        return None
    centre, sd = spread([first[s] - second[s] for s in both])
    n = len(both)
    drawn = math.hypot(*(sampling(mean(arm[s] for s in both)) for arm in (first, second)))
    return Measure(centre, sd, n, drawn if sd is None else sd / math.sqrt(n), partial)


def unsampled(values: Sequence[float], partial: bool = False) -> Measure | None:
    """A quantity whose error only the seeds can tell, such as the difference of two curves' roughness."""
    if not values:
        return None
    centre, sd = spread(values)
    return Measure(centre, sd, len(values), math.inf if sd is None else sd / math.sqrt(len(values)), partial)


def roughness(outcome: Outcome, first: float = 0.5, last: float = 1.0) -> float | None:
    """How unsteady a curve is between two shares of the run: the mean change of accuracy from a round to the next."""
    curve = outcome.curve()
    part = curve[int(first * len(curve)) : int(last * len(curve))]
    steps = [abs(b - a) for a, b in pairwise(part) if not math.isnan(b - a)]
    return mean(steps) if steps else None


def early(outcome: Outcome, share: float = 1 / 3) -> float | None:
    """The mean accuracy over the first third of the rounds."""
    curve = [a for a in outcome.curve()[: max(int(share * outcome.of), 1)] if not math.isnan(a)]
    return mean(curve) if curve else None


def _open(arm: ArmResult) -> bool:
    return not arm.finished


def points(value: float, signed: bool = False) -> str:
    """0.031 → 3.1 points."""
    return f"{100 * value:{'+' if signed else ''}.1f} points"


def shown(m: Measure, *, signed: bool = False) -> str:
    """Mean ± sd (n seeds)."""
    centre = points(m.value, signed=True) if signed else f"{100 * m.value:.1f} %"
    deviation = f" ± {100 * m.sd:.1f}" if m.sd is not None else ""
    return f"{centre}{deviation} ({m.n} seed{'s' * (m.n > 1)})"


def plus_minus(error: float) -> str:
    return "no standard error from one seed" if math.isinf(error) else f"standard error {points(error)}"


def interval(m: Measure) -> str:
    """The standard error and what it means for a difference."""
    if math.isinf(m.error):
        return plus_minus(m.error)
    return (
        f"{plus_minus(m.error)}, 95 % interval {100 * (m.value - m.margin):+.1f} to {100 * (m.value + m.margin):+.1f}"
    )


def near(m: Measure, target: float) -> tuple[Agrees, str]:
    """Whether an accuracy is what the paper reports: no further off than two standard errors of both together.

    Two seeds that happen to be alike do not make ours smaller than what drawing the test images gives.
    """
    own = max(m.error, sampling(m.value) / math.sqrt(m.n))
    gap, total = m.value - target, math.hypot(own, sampling(target))
    agrees: Agrees = "yes" if abs(gap) <= BEYOND * total else "no"
    side = "above" if gap > 0 else "below"
    told = f"{points(abs(gap))} {side}; {plus_minus(m.error)}, the paper's {points(sampling(target))}"
    return agrees, told if agrees == "yes" else f"Does not hold here: {told}"


def near_gain(m: Measure, target: float, around: float) -> tuple[Agrees, str]:
    """Whether a gain is as large as reported; one that noise could explain leaves it undecided."""
    total = math.hypot(m.error, math.sqrt(2) * sampling(around))
    if abs(m.value - target) > BEYOND * total:
        how = "smaller" if m.value < target else "larger"
        direction = positive(m)[0]
        more = {"yes": "; the direction holds", "no": "; the direction is the other", "undecided": ""}
        return "no", f"Does not hold here: the gain is {how} ({plus_minus(m.error)}){more.get(direction, '')}"
    if m.value <= m.margin:
        return "undecided", f"Fits, but so would no gain at all ({interval(m)})"
    return "yes", f"{plus_minus(m.error)}"


def positive(m: Measure) -> tuple[Agrees, str]:
    """Whether something is above zero."""
    if m.value > m.margin:
        return "yes", plus_minus(m.error)
    if m.value < -m.margin:
        return "no", f"Does not hold here: the other way round ({plus_minus(m.error)})"
    return "undecided", f"Not significant ({interval(m)})"
