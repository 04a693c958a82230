"""The paper's claims about its figures, each next to our results: a pure function from results to verdicts."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedfew.data.shares import heterogeneity
from fedfew.runs.intervals import Interval
from paper.ablation import ablation
from paper.arms import BEST, EQUAL, IID, LEVELS, MIXES, NON_IID, PANELS, SERVER_ONLY, mix_label
from paper.few import FEW, SITES
from paper.goals import at_sites, by_skew
from paper.measures import (
    Agrees,
    Verdict,
    ahead,
    between,
    difference,
    early,
    level,
    near_gain,
    no_runs,
    plus_minus,
    points,
    positive,
    reaches,
    roughness,
    shown,
    weigh,
)
from paper.results import ArmResult, Results

FIG4 = "Experiment Results, Fig. 4"
FIG5 = "Experiment Results, Fig. 5"
FIG6A = "Experiment Results, Fig. 6(a)"
FIG6B = "Experiment Results, Fig. 6(b)"
OURS, BASELINE = "FedMix + FedFreq", "FedMatch + FedAvg"
SAME_RULE = "FedMatch + FedFreq"
"""The baseline where only this one was run."""


def fig4(arms: Results) -> list[Verdict]:
    """Accuracy, the gain over FedMatch, FedFreq's share of it, and the early rounds."""
    name = SAME_RULE if arms[NON_IID, SAME_RULE].runs and not arms[NON_IID, BASELINE].runs else BASELINE
    ours, baseline = arms[NON_IID, OURS], arms[NON_IID, name]
    other = "FedMatch" if name == BASELINE else name
    faster = f"non-IID: accuracy rises faster early (mean of the first third of the rounds, against {other})"
    steadier = f"non-IID: steadier early (change of accuracy from round to round, {other} minus FedMix)"
    return [
        reaches("non-IID: FedMix converges at 47.5 %", FIG4, ours, 0.475),
        ahead(f"non-IID: about 3 points over {other}", FIG4, ours, baseline, lambda m: near_gain(m, 0.03, 0.475)),
        _everywhere(arms),
        ahead("non-IID: FedFreq suits better than FedAvg (FedMix)", FIG4, ours, arms[NON_IID, "FedMix + FedAvg"]),
        weigh(faster, FIG4, between(ours, baseline, early, sampled=True), positive, signed=True),
        weigh(steadier, FIG4, _rougher(baseline, ours, 0.0, 1 / 3), positive, signed=True),
    ]


def _everywhere(arms: Results) -> Verdict:
    """FedMix against FedMatch under each aggregation rule and each setting."""
    claim = "IID and non-IID, FedAvg and FedFreq: FedMix is better than FedMatch each time"
    pairs = [
        (f"{panel}, {rule}", difference(arms[panel, f"FedMix + {rule}"], arms[panel, f"FedMatch + {rule}"]))
        for panel in PANELS
        for rule in ("FedAvg", "FedFreq")
    ]
    known = [(name, m) for name, m in pairs if m is not None]
    if len(known) < len(pairs):
        return no_runs(claim, FIG4)
    judged = [(name, m, positive(m)[0]) for name, m in known]
    against = [name for name, _, agrees in judged if agrees == "no"]
    open_ = [name for name, _, agrees in judged if agrees == "undecided"]
    agrees: Agrees = "no" if against else "undecided" if open_ else "yes"
    words = f"Does not hold here: not so for {'; '.join(against)}. " if against else ""
    words += f"Not significant for {'; '.join(open_)}. " if open_ else ""
    worst, n = max(m.se or 0.0 for _, m, _ in judged), min(m.n for _, m, _ in judged)
    got = ", ".join(f"{name}: {100 * m.mean:+.1f}" for name, m, _ in judged)
    return Verdict(
        claim, FIG4, f"{got} points ({n} seed{'s' * (n > 1)})", agrees,
        f"{words}Largest {plus_minus(worst)}", worst, n, any(m.partial for _, m, _ in judged),
    )  # fmt: skip


def _rougher(first: ArmResult, second: ArmResult, start: float = 0.5, end: float = 1.0) -> Interval | None:
    """By how much the first arm's curve changes more from round to round."""
    return between(first, second, lambda run: roughness(run, start, end))


def fig5(arms: Results) -> list[Verdict]:
    """The best weights, and instability as α falls."""
    steady, shaky = arms[NON_IID, mix_label(MIXES[0])], arms[NON_IID, mix_label(MIXES[-1])]
    return [
        _best(arms, NON_IID, BEST, "non-IID: α = 0.5, β = 0.3, γ = 0.2 are the best weights"),
        weigh(
            f"non-IID: as α falls the curve becomes unstable (change from round to round in the second half, "
            f"α = {MIXES[-1][0]:g} minus α = {MIXES[0][0]:g})",
            FIG5, _rougher(shaky, steady), positive, signed=True,
        ),
        _best(arms, IID, EQUAL, "IID: better when the three weights are close to each other"),
    ]  # fmt: skip


def _best(arms: Results, panel: str, mix: tuple[float, float, float], claim: str) -> Verdict:
    """Whether one setting beats all others of its panel."""
    own = arms[panel, mix_label(mix)]
    others = [arm for key, arm in arms.items() if key[0] == panel and key not in (own.arm.key, (panel, SERVER_ONLY))]
    leads = [(arm.arm.label, m) for arm in others if (m := difference(own, arm)) is not None]
    mine = level(own)
    if mine is None or len(leads) < len(others):
        return no_runs(claim, FIG5)
    rival, lead = min(leads, key=lambda entry: entry[1].mean)
    agrees, words = positive(lead)
    words = {
        "yes": f"ahead of the next, {rival}, by {points(lead.mean)} ({plus_minus(lead.se)})",
        "no": f"Does not hold here: {rival} is better by {points(-lead.mean)} ({plus_minus(lead.se)})",
        "undecided": f"Not significant: {points(lead.mean, signed=True)} against {rival} ({plus_minus(lead.se)})",
    }.get(agrees, words)
    return Verdict(claim, FIG5, shown(mine), agrees, words, lead.se, lead.n, any(m.partial for _, m in leads))


def fig6a(arms: Results) -> list[Verdict]:
    """The spread over non-IID levels."""
    claim = "μ = 0.1, 1, 10, 100: accuracies differ by no more than 1 point"
    levels = [(arm, level(arm)) for arm in (arms["", f"μ = {mu:g}"] for mu in LEVELS)]
    means = [(arm, m) for arm, m in levels if m is not None]
    if len(means) < len(levels):
        return [no_runs(claim, FIG6A)]
    (high, top), (low, bottom) = (pick(means, key=lambda entry: entry[1].mean) for pick in (max, min))
    gap, width = difference(high, low) or top, top.mean - bottom.mean
    margin = gap.mean - gap.low if gap.low is not None else 0.0
    agrees: Agrees = "yes" if width <= 0.01 else "no" if width - margin > 0.01 else "undecided"
    lead = {"no": "Does not hold here: ", "undecided": "More than 1 point, but not significantly: "}.get(agrees, "")
    words = f"{lead}from {high.arm.label} down to {low.arm.label}; {plus_minus(gap.se)}"
    n = min(m.n for _, m in means)
    got = f"spread {points(width)} ({n} seed{'s' * (n > 1)})"
    return [Verdict(claim, FIG6A, got, agrees, words, gap.se, n, any(m.partial for _, m in means))]


def fig6b(arms: Results) -> list[Verdict]:
    """Accuracy by the number of labels."""
    ours, theirs, fewer = (
        arms["", name] for name in ("FedMix, 800 labels", "FedMatch, 800 labels", "FedMix, 700 labels")
    )
    return [
        reaches("800 labels: FedMix reaches 47 %", FIG6B, ours, 0.47),
        ahead("800 labels: 2 points over FedMatch", FIG6B, ours, theirs, lambda m: near_gain(m, 0.02, 0.47)),
        ahead("700 labels: accuracy falls greatly (800 minus 700 labels)", FIG6B, ours, fewer, _large),
    ]


def _large(m: Interval) -> tuple[Agrees, str]:
    """A great fall is more than a point, and more than noise."""
    agrees, words = positive(m)
    if agrees == "yes" and m.mean < 0.01:
        return "no", f"Does not hold here: real, but less than 1 point ({plus_minus(m.se)})"
    if agrees == "undecided" and m.high is not None and m.high < 0.01:
        return "no", f"Does not hold here: no fall of 1 point or more ({plus_minus(m.se)})"
    return agrees, words


def extra(arms: Results) -> list[Verdict]:
    """When frequency matters: FedFreq is said to help when some clients take part far more often."""
    claim = "less weight for frequent clients makes a better model (availability ∝ 1/rank, FedFreq minus {})"
    rules = ("FedAvg", "uniform mean")
    source = "FedFreq Aggregation Algorithm"
    return [ahead(claim.format(rule), source, arms["", OURS], arms["", f"FedMix + {rule}"]) for rule in rules]


def _order(arms: Results, where: str) -> list[Verdict]:
    """Whether the order of the methods holds in another setting."""
    others = {"FedMatch": BASELINE, "server-only training": SERVER_ONLY}
    return [
        ahead(f"{where}: FedMix is better than {words}", FIG4, arms["", OURS], arms["", other])
        for words, other in others.items()
    ]


CLAIMS: dict[str, Callable[[Results], list[Verdict]]] = {
    "fig4": fig4, "fig5": fig5, "fig6a": fig6a, "fig6b": fig6b, "extra": extra, FEW: by_skew, SITES: at_sites,
    "ablation": ablation, "recipe": partial(_order, where="with the best recipe for the labels, too"),
    "groupnorm": partial(_order, where="with GroupNorm, too"),
}  # fmt: skip
"""The claims about each figure, judged by our results."""


def partitions(histograms: Mapping[float, NDArray[np.int64]]) -> list[Verdict]:
    """Figure 3: client sizes and classes at the levels shown; sizes relative to their mean, 550 in the paper."""
    source = "Experiment Setup, Fig. 3"
    sizes = {mu: h.sum(1) / h.sum(1).mean() for mu, h in histograms.items()}
    held = {mu: (h > 0).sum(1) for mu, h in histograms.items()}
    smallest, largest = min(s.min() for s in sizes.values()), max(s.max() for s in sizes.values())
    few, many = min(int(h.min()) for h in held.values()), max(int(h.max()) for h in held.values())
    variation = {mu: float(heterogeneity(histograms[mu])) for mu in sorted(histograms)}
    ordered = all(a > b for a, b in pairwise(variation.values()))
    unequal: Agrees = "yes" if smallest < 50 / 550 and largest >= 580 / 550 else "no"
    kinds: Agrees = "yes" if few < 2 and many == 10 else "no"
    return [
        Verdict(
            "clients of 580 samples and of fewer than 50 (of 550 on average)", source,
            f"{550 * largest:.0f} and {550 * smallest:.0f}, scaled to 550", unequal,
            "" if unequal == "yes" else "Does not hold here: no client is that small",
        ),
        Verdict(
            "some clients have ten classes, some fewer than two", source, f"{many} and {few}", kinds,
            "" if kinds == "yes" else "Does not hold here",
        ),
        Verdict(
            "the smaller μ, the higher the non-IID level", "Dirchlet Data Distribution Function",
            ", ".join(f"R = {value:.2f} at μ = {mu:g}" for mu, value in variation.items()),
            "yes" if ordered else "no", "R: mean total variation between clients",
        ),
    ]  # fmt: skip
