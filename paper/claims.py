"""The paper's claims about its figures, each next to our results: a pure function from results to verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedfew.data.partitions import heterogeneity
from fedfew.runs.statistics import Interval
from fedfew.studies.bounds import other_recipe
from paper.ablation import ablation
from paper.arms import (
    BEST,
    EQUAL,
    IID,
    LEVELS,
    MIXES,
    NON_IID,
    PANELS,
    POOLED,
    SERVER_ONLY,
    mix_label,
)
from paper.measures import (
    Agrees,
    Verdict,
    between,
    difference,
    early,
    level,
    near_gain,
    plus_minus,
    points,
    positive,
    ratio,
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


def fig4(found: Results) -> list[Verdict]:
    """Accuracy, the gain over FedMatch, FedFreq's share of it, and the early rounds."""
    name = SAME_RULE if found[NON_IID, SAME_RULE].runs and not found[NON_IID, BASELINE].runs else BASELINE
    ours, baseline = found[NON_IID, OURS], found[NON_IID, name]
    other = "FedMatch" if name == BASELINE else name
    average = found[NON_IID, "FedMix + FedAvg"]
    gain, early_gain = difference(ours, baseline), between(ours, baseline, early, sampled=True)
    steadier = _rougher(baseline, ours, 0.0, 1 / 3)
    return [
        reaches("non-IID: FedMix converges at 47.5 %", FIG4, ours, 0.475),
        weigh(
            f"non-IID: about 3 points over {other}", FIG4, gain, lambda m: near_gain(m, 0.03, 0.475), signed=True
        ),
        _everywhere(found),
        weigh(
            "non-IID: FedFreq suits better than FedAvg (FedMix)", FIG4, difference(ours, average), positive, signed=True
        ),
        weigh(
            f"non-IID: accuracy rises faster early (mean of the first third of the rounds, against {other})",
            FIG4, early_gain, positive, signed=True,
        ),
        weigh(
            f"non-IID: steadier early (change of accuracy from round to round, {other} minus FedMix)",
            FIG4, steadier, positive, signed=True,
        ),
    ]  # fmt: skip


def _everywhere(found: Results) -> Verdict:
    """FedMix against FedMatch under each aggregation rule and each setting."""
    claim = "IID and non-IID, FedAvg and FedFreq: FedMix is better than FedMatch each time"
    pairs = [
        (f"{panel}, {rule}", difference(found[panel, f"FedMix + {rule}"], found[panel, f"FedMatch + {rule}"]))
        for panel in PANELS
        for rule in ("FedAvg", "FedFreq")
    ]
    known = [(name, m) for name, m in pairs if m is not None]
    if len(known) < len(pairs):
        return Verdict(claim, FIG4, "–", "no runs yet", "")
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


def fig5(found: Results) -> list[Verdict]:
    """The best weights, and instability as α falls."""
    steady, shaky = found[NON_IID, mix_label(MIXES[0])], found[NON_IID, mix_label(MIXES[-1])]
    return [
        _best(found, NON_IID, BEST, "non-IID: α = 0.5, β = 0.3, γ = 0.2 are the best weights"),
        weigh(
            f"non-IID: as α falls the curve becomes unstable (change from round to round in the second half, "
            f"α = {MIXES[-1][0]:g} minus α = {MIXES[0][0]:g})",
            FIG5, _rougher(shaky, steady), positive, signed=True,
        ),
        _best(found, IID, EQUAL, "IID: better when the three weights are close to each other"),
    ]  # fmt: skip


def _best(found: Results, panel: str, mix: tuple[float, float, float], claim: str) -> Verdict:
    """Whether one setting beats all others of its panel."""
    own = found[panel, mix_label(mix)]
    others = [arm for key, arm in found.items() if key[0] == panel and key not in (own.arm.key, (panel, SERVER_ONLY))]
    leads = [(arm.arm.label, m) for arm in others if (m := difference(own, arm)) is not None]
    mine = level(own)
    if mine is None or len(leads) < len(others):
        return Verdict(claim, FIG5, "–", "no runs yet", "")
    rival, lead = min(leads, key=lambda entry: entry[1].mean)
    agrees, words = positive(lead)
    words = {
        "yes": f"ahead of the next, {rival}, by {points(lead.mean)} ({plus_minus(lead.se)})",
        "no": f"Does not hold here: {rival} is better by {points(-lead.mean)} ({plus_minus(lead.se)})",
        "undecided": f"Not significant: {points(lead.mean, signed=True)} against {rival} ({plus_minus(lead.se)})",
    }.get(agrees, words)
    partial = any(m.partial for _, m in leads)
    return Verdict(claim, FIG5, shown(mine), agrees, words, lead.se, lead.n, partial)


def fig6a(found: Results) -> list[Verdict]:
    """The spread over non-IID levels."""
    claim = "μ = 0.1, 1, 10, 100: accuracies differ by no more than 1 point"
    arms = [found["", f"μ = {mu:g}"] for mu in LEVELS]
    means = {arm.arm.label: m for arm in arms if (m := level(arm)) is not None}
    if len(means) < len(arms):
        return [Verdict(claim, FIG6A, "–", "no runs yet", "")]
    high, low = (pick(arms, key=lambda arm: means[arm.arm.label].mean) for pick in (max, min))
    gap = difference(high, low) or means[high.arm.label]
    width = means[high.arm.label].mean - means[low.arm.label].mean
    margin = gap.mean - gap.low if gap.low is not None else 0.0
    agrees: Agrees = "yes" if width <= 0.01 else "no" if width - margin > 0.01 else "undecided"
    words = f"from {high.arm.label} down to {low.arm.label}; {plus_minus(gap.se)}"
    lead = {"no": "Does not hold here: ", "undecided": "More than 1 point, but not significantly: "}.get(agrees, "")
    partial = any(m.partial for m in means.values())
    n = min(m.n for m in means.values())
    got = f"spread {points(width)} ({n} seed{'s' * (n > 1)})"
    return [Verdict(claim, FIG6A, got, agrees, lead + words, gap.se, n, partial)]


def fig6b(found: Results) -> list[Verdict]:
    """Accuracy by the number of labels."""
    ours, theirs = found["", "FedMix, 800 labels"], found["", "FedMatch, 800 labels"]
    drop = difference(ours, found["", "FedMix, 700 labels"])
    return [
        reaches("800 labels: FedMix reaches 47 %", FIG6B, ours, 0.47),
        weigh(
            "800 labels: 2 points over FedMatch",
            FIG6B, difference(ours, theirs), lambda m: near_gain(m, 0.02, 0.47), signed=True,
        ),
        weigh("700 labels: accuracy falls greatly (800 minus 700 labels)", FIG6B, drop, _large, signed=True),
    ]  # fmt: skip


def _large(m: Interval) -> tuple[Agrees, str]:
    """A great fall is more than a point, and more than noise."""
    agrees, words = positive(m)
    if agrees == "yes" and m.mean < 0.01:
        return "no", f"Does not hold here: real, but less than 1 point ({plus_minus(m.se)})"
    if agrees == "undecided" and m.high is not None and m.high < 0.01:
        return "no", f"Does not hold here: no fall of 1 point or more ({plus_minus(m.se)})"
    return agrees, words


def extra(found: Results) -> list[Verdict]:
    """When frequency matters: FedFreq is said to help when some clients take part far more often."""
    source = "FedFreq Aggregation Algorithm"
    ours = found["", OURS]
    return [
        weigh(
            f"less weight for frequent clients makes a better model (availability ∝ 1/rank, FedFreq minus {rule})",
            source, difference(ours, found["", f"FedMix + {rule}"]), positive, signed=True,
        )
        for rule in ("FedAvg", "uniform mean")
    ]  # fmt: skip


def groupnorm(found: Results) -> list[Verdict]:
    """Whether the order of the methods holds for a network with normalisation."""
    return _order(found, "with GroupNorm, too")


def recipe(found: Results) -> list[Verdict]:
    """Whether the order of the methods holds with the best recipe for the labels alone."""
    return _order(found, "with the best recipe for the labels, too")


def _order(found: Results, where: str) -> list[Verdict]:
    ours = found["", OURS]
    return [
        weigh(
            f"{where}: FedMix is better than {words}", FIG4,
            difference(ours, found["", other]), positive, signed=True,
        )
        for words, other in (("FedMatch", "FedMatch + FedAvg"), ("server-only training", SERVER_ONLY))
    ]  # fmt: skip


GOALS = {"μ = 0.1": 0.25, "μ = 0.3": 0.22, "μ = 1": 0.16, "IID": 0.04}
"""The gain that fedmoments should reach over server-only training with 40 labels."""


def _at_least(goal: float) -> Callable[[Interval], tuple[Agrees, str]]:
    """Judge a gain by its mean alone: a goal is met or missed."""
    return lambda m: ("yes" if m.mean >= goal else "no", plus_minus(m.se))


def few_labels(found: Results) -> list[Verdict]:
    """Our own goals for few labels on a frozen backbone."""
    judged = []
    for skew, goal in GOALS.items():
        gain = difference(found[skew, "fedmoments"], found[skew, SERVER_ONLY])
        judged.append(
            weigh(
                f"40 labels, {skew}: {100 * goal:g} points over server-only training", "", gain,
                _at_least(goal), signed=True,
            )
        )  # fmt: skip
    share = ratio(found["μ = 0.1", "fedmoments"], found["μ = 0.1", POOLED])
    judged.append(weigh("40 labels, μ = 0.1: 98 % of what all labels give", "", share, _at_least(0.98)))
    for other in ("SemiFL", "(FL)²"):
        lead = difference(found["μ = 0.1", "fedmoments"], found["μ = 0.1", other])
        judged.append(
            weigh(
                f"40 labels, μ = 0.1: 5 points over {other} on the same features", "", lead,
                _at_least(0.05), signed=True,
            )
        )  # fmt: skip
    return [replace(v, kind="our goal") for v in judged]


CLAIMS: dict[str, Callable[[Results], list[Verdict]]] = {
    "fig4": fig4, "fig5": fig5, "fig6a": fig6a, "fig6b": fig6b, "extra": extra, "few-labels": few_labels,
    "ablation": ablation, "recipe": recipe, "groupnorm": groupnorm,
}  # fmt: skip


def verdicts(figure: str, found: Results) -> list[Verdict]:
    """The paper's claims about a figure, judged by our results."""
    return CLAIMS[figure](found)


def against_server_only(found: Results) -> dict[tuple[str, str], Interval]:
    """For each arm with clients and the server's recipe, its gain over training on the server's labels alone."""
    gains = {}
    for key, (arm, bound) in _pairs(found).items():
        if not _other(arm, bound) and (m := difference(arm, bound)) is not None:
            gains[key] = m
    return gains


def without_difference(found: Results) -> dict[tuple[str, str], str]:
    """The arms whose server trains in another way than server-only's, so that no difference is shown, and why."""
    apart = {key: _other(arm, bound) for key, (arm, bound) in _pairs(found).items()}
    return {key: f"not compared: other {', '.join(keys)}" for key, keys in apart.items() if keys}


def _pairs(found: Results) -> dict[tuple[str, str], tuple[ArmResult, ArmResult]]:
    """Each arm with its server-only training, as far as there are runs of both."""
    pairs = {key: (arm, _bound(found, *key)) for key, arm in found.items() if SERVER_ONLY not in key[1] and arm.runs}
    return {key: (arm, bound) for key, (arm, bound) in pairs.items() if bound is not None and bound.runs}


def _other(arm: ArmResult, bound: ArmResult) -> list[str]:
    pairs = ((a, b) for a in arm.runs for b in bound.runs if a.seeds == b.seeds)
    return list(dict.fromkeys(key for a, b in pairs for key in other_recipe(a, b)))


def gain_sentence(key: tuple[str, str], m: Interval) -> str:
    """Whether the arm beats the lower bound, in words."""
    panel, label = key
    words = {
        "yes": f"beats server-only training by {points(m.mean)}",
        "no": f"is worse than server-only training by {points(-m.mean)}",
    }.get(positive(m)[0], f"does not differ significantly from server-only training ({points(m.mean, signed=True)})")
    return f"{label}{', ' + panel if panel else ''} {words}; {plus_minus(m.se)}, {m.n} seed{'s' * (m.n > 1)}."


def gain_cell(m: Interval) -> str:
    """The gain for a table."""
    words = {"yes": "better", "no": "**worse**"}.get(positive(m)[0], "not significant")
    return f"{100 * m.mean:+.1f} (SE {100 * (m.se or 0.0):.1f}{', one seed' if m.n == 1 else ''}), {words}"


def _bound(found: Results, panel: str, label: str) -> ArmResult | None:
    """Server-only of the same panel, and with as many labels where the figure varies them."""
    _, comma, labels = label.partition(", ")
    return found.get((panel, f"{SERVER_ONLY}, {labels}")) if comma else found.get((panel, SERVER_ONLY))


def partitions(histograms: Mapping[float, NDArray[np.int64]]) -> list[Verdict]:
    """Figure 3: client sizes and classes at the levels shown; sizes relative to their mean, 550 in the paper."""
    source = "Experiment Setup, Fig. 3"
    sizes = {mu: h.sum(1) / h.sum(1).mean() for mu, h in histograms.items()}
    held = {mu: (h > 0).sum(1) for mu, h in histograms.items()}
    smallest, largest = min(s.min() for s in sizes.values()), max(s.max() for s in sizes.values())
    few, many = min(int(h.min()) for h in held.values()), max(int(h.max()) for h in held.values())
    ordered = _falls([_mean_variation(histograms[mu]) for mu in sorted(histograms)])
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
            ", ".join(f"R = {_mean_variation(histograms[mu]):.2f} at μ = {mu:g}" for mu in sorted(histograms)),
            "yes" if ordered else "no", "R: mean total variation between clients",
        ),
    ]  # fmt: skip


def _mean_variation(histogram: NDArray[np.int64]) -> float:
    return float(heterogeneity(histogram))


def _falls(values: Sequence[float]) -> bool:
    return all(a > b for a, b in pairwise(values))


def tally(found: Iterable[Verdict]) -> dict[str, int]:
    """How many claims hold, do not hold, or are undecided."""
    counts: dict[str, int] = {}
    for verdict in found:
        counts[verdict.agrees] = counts.get(verdict.agrees, 0) + 1
    return counts
