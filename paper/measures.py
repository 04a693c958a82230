"""Numbers with their standard errors, and the verdict they allow: yes, no, or undecided.

A standard error is sd/√n over the seeds, and at least that of drawing the test images, √(p(1−p)/N); for one seed it is
the latter. A difference is paired by seed and counts as real if its 95 % interval by Student's t excludes zero, as in
``fedfew compare``, and if it is more than twice the error of drawing the images.
The paper's own numbers come from one run on 2,000 images, so they have an error too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean
from typing import Any, Literal

from fedfew.runs.intervals import BEYOND, Interval
from fedfew.runs.run import Run
from fedfew.studies.bounds import other_recipe
from paper.arms import SERVER_ONLY
from paper.plan import ArmKey
from paper.results import ArmResult, Results

Agrees = Literal["yes", "no", "undecided", "no runs yet"]
Judge = Callable[[Interval], tuple[Agrees, str]]
"""From a number to its verdict and the words for it."""
IMAGES = 2_000
"""Test images of the paper."""
WIDTH, UNLABELED, ROUNDS = 64, 55_000, 150
"""Size of the paper's experiment."""
Kind = Literal["the paper says", "our goal", "would have to hold"]
Gain = Interval | str
"""A paired difference to server-only training, or why none is shown."""
ASKED: dict[Kind, str] = {"the paper says": "agrees?", "our goal": "met?", "would have to hold": "holds?"}
"""What is judged, with the question that the verdict answers."""


@dataclass(frozen=True)
class Verdict:
    """One claim next to our result."""

    claim: str
    source: str
    got: str
    agrees: Agrees
    words: str
    error: float | None = None
    seeds: int = 0
    partial: bool = False
    kind: Kind = "the paper says"


def columns(verdicts: Sequence[Verdict]) -> tuple[str, str, str]:
    """The heads of a table of claims."""
    kind = verdicts[0].kind if verdicts else "the paper says"
    return kind, "we got (mean ± sd)", ASKED[kind]


def sampling(share: float, images: int = IMAGES) -> float:
    """Standard error of an accuracy measured on so many test images; the paper's, if nothing is said."""
    return math.sqrt(max(share * (1 - share), 0.0) / images)


def tested(arm: ArmResult) -> int:
    """The test images of an arm's runs; the paper's number, if it is not known yet."""
    known = (run.evaluation.get("images") or run.flat["dataset.test"] or IMAGES for run in arm.runs)
    return min(known, default=IMAGES)


def level(arm: ArmResult) -> Interval | None:
    """The accuracy of an arm."""
    values = list(arm.by_seeds().values())
    if not values:
        return None
    return replace(Interval.of(values, sampling(mean(values), tested(arm))), partial=not arm.finished)


def difference(first: ArmResult, second: ArmResult) -> Interval | None:
    """How much more accurate the first arm is, over the seeds that both have."""
    return between(first, second, Run.accuracy, sampled=True)


def ratio(first: ArmResult, second: ArmResult) -> Interval | None:
    """The first arm's accuracy as a share of the second's, over the seeds that both have."""
    a, b = first.by_seeds(), second.by_seeds()
    shares = [a[seeds] / b[seeds] for seeds in a if b.get(seeds)]
    return replace(Interval.of(shares), partial=not (first.finished and second.finished)) if shares else None


def between(
    first: ArmResult, second: ArmResult, measure: Callable[[Run], float | None], *, sampled: bool = False
) -> Interval | None:
    """The mean difference of a measure with the same seeds; ``sampled``: an accuracy, whose error one seed shows."""
    a, b = first.by_seeds(measure), second.by_seeds(measure)
    both = [seed for seed in a if seed in b]
    gaps = [a[seed] - b[seed] for seed in both]
    if not gaps:
        return None
    error = None
    if sampled:
        accuracies = ((a, tested(first)), (b, tested(second)))
        error = math.hypot(*(sampling(mean(by[s] for s in both), images) for by, images in accuracies))
    return replace(Interval.of(gaps, error), partial=not (first.finished and second.finished))


def roughness(run: Run, first: float = 0.5, last: float = 1.0) -> float | None:
    """How unsteady a curve is between two fractions of the run: the mean change of accuracy from score to score."""
    curve = run.curve()
    part = [a for a in curve[int(first * len(curve)) : int(last * len(curve))] if not math.isnan(a)]
    steps = [abs(b - a) for a, b in pairwise(part)]
    return mean(steps) if steps else None


def early(run: Run, share: float = 1 / 3) -> float | None:
    """The mean accuracy over the first third of the rounds."""
    curve = [a for a in run.curve()[: max(int(share * run.planned), 1)] if not math.isnan(a)]
    return mean(curve) if curve else None


def points(value: float, signed: bool = False) -> str:
    """0.031 → 3.1 points."""
    return f"{100 * value:{'+' if signed else ''}.1f} points"


def shown(m: Interval, *, signed: bool = False) -> str:
    """Mean ± sd (n seeds)."""
    centre = points(m.mean, signed=True) if signed else f"{100 * m.mean:.1f} %"
    deviation = f" ± {100 * m.sd:.1f}" if m.sd is not None else ""
    return f"{centre}{deviation} ({m.n} seed{'s' * (m.n > 1)})"


def plus_minus(error: float | None) -> str:
    return "no standard error from one seed" if error is None else f"standard error {points(error)}"


def interval(m: Interval) -> str:
    """The standard error and what it means for a difference."""
    if m.low is None or m.high is None:
        return plus_minus(m.se)
    return f"{plus_minus(m.se)}, 95 % interval {100 * m.low:+.1f} to {100 * m.high:+.1f}"


def near(m: Interval, target: float) -> tuple[Agrees, str]:
    """Whether an accuracy is what the paper reports: within two standard errors of both combined."""
    gap, total = m.mean - target, math.hypot(m.se or 0.0, sampling(target))
    side = "above" if gap > 0 else "below"
    words = f"{points(abs(gap))} {side}; {plus_minus(m.se)}, the paper's {points(sampling(target))}"
    return ("yes", words) if abs(gap) <= BEYOND * total else ("no", f"Does not hold here: {words}")


def reaches(claim: str, source: str, arm: ArmResult, target: float) -> Verdict:
    """Whether an arm has the accuracy that the paper reports; a smaller experiment cannot say."""
    less = ", ".join(smaller(arm.runs[0].document)) if arm.runs else ""
    words = f"Not comparable: the paper has {less}"
    return weigh(claim, source, level(arm), lambda m: ("undecided", words) if less else near(m, target))


def smaller(config: Mapping[str, Any]) -> list[str]:
    """What the paper's experiment has more of than this one; nothing on a pretrained backbone: the paper has none."""
    if "train" in config["model"]:
        return []
    less = {
        f"width {WIDTH}": config["model"].get("width", 0) < WIDTH,
        f"{UNLABELED:,} images": 0 < config["dataset"]["unlabeled"] < UNLABELED,  # 0: all
        f"{ROUNDS} rounds": config["rounds"] < ROUNDS,
    }
    return [size for size, is_less in less.items() if is_less]


def near_gain(m: Interval, target: float, level: float) -> tuple[Agrees, str]:
    """Whether a gain is as large as reported; undecided if noise could explain it."""
    total = math.hypot(m.se or 0.0, math.sqrt(2) * sampling(level))
    direction = positive(m)[0]
    if abs(m.mean - target) > BEYOND * total:
        how = "smaller" if m.mean < target else "larger"
        more = {"yes": "; the direction holds", "no": "; the direction is the opposite"}.get(direction, "")
        return "no", f"Does not hold here: the gain is {how} ({plus_minus(m.se)}){more}"
    if direction != "yes":
        return "undecided", f"Fits, but so would no gain at all ({interval(m)})"
    return "yes", plus_minus(m.se)


def positive(m: Interval) -> tuple[Agrees, str]:
    """Whether something is above zero."""
    if not m.significant:
        return "undecided", f"Not significant ({interval(m)})"
    if m.mean > 0:
        return "yes", plus_minus(m.se)
    return "no", f"Does not hold here: it is the other way round ({plus_minus(m.se)})"


def weigh(claim: str, source: str, m: Interval | None, judge: Judge, *, signed: bool = False) -> Verdict:
    """A claim and a number, with the verdict."""
    if m is None:
        return no_runs(claim, source)
    agrees, words = judge(m)
    return Verdict(claim, source, shown(m, signed=signed), agrees, words, m.se, m.n, m.partial)


def no_runs(claim: str, source: str) -> Verdict:
    return Verdict(claim, source, "–", "no runs yet", "")


def ahead(claim: str, source: str, first: ArmResult, second: ArmResult, judge: Judge = positive) -> Verdict:
    """Whether the first arm is more accurate than the second, by enough for the claim."""
    return weigh(claim, source, difference(first, second), judge, signed=True)


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
    """The gain for a table. One seed gives no verdict: its error is that of the test images, without the seeds'."""
    if isinstance(gain, str):
        return gain
    number = f"{100 * gain.mean:+.1f} (SE {100 * (gain.se or 0.0):.1f}"
    words = {"yes": "better", "no": "**worse**"}.get(positive(gain)[0], "not significant")
    return f"{number}, one seed)" if gain.n == 1 else f"{number}), {words}"
