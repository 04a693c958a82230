"""The goals of the few-labels study, each next to what the runs gave."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from fedfew.runs.intervals import Interval
from fedfew.runs.run import Run
from paper.arms import SERVER_ONLY
from paper.few import OURS
from paper.measures import Agrees, Verdict, difference, interval, no_runs, plus_minus, points, weigh
from paper.results import ArmResult, Results

GAINS = {"μ = 0.1": 0.255, "μ = 0.3": 0.25, "μ = 1": 0.215, "IID": 0.135}
"""The gain over the labels alone with 40 labels and 100 clients."""
HARM = -0.01
"""No single run may be further below the labels alone."""
BYTES = 150_000


def by_skew(arms: Results) -> list[Verdict]:
    """The gain at each skew, the traffic, and the worst run."""
    goals = [_gain(arms, skew, goal, f"40 labels, {skew}, 100 clients") for skew, goal in GAINS.items()]
    return _as_goals([*goals, _traffic(arms.get(("μ = 0.1", OURS)), "100 clients"), _worst(arms)])


def at_sites(arms: Results) -> list[Verdict]:
    """Few sites, scanners, X-rays, outages, and the worst run."""
    xrays = [f"20 labels, {n} sites, μ = 0.3" for n in (10, 5)]
    goals = [
        *(_significant(arms, setting, f"chest X-rays, {setting}") for setting in xrays),
        _gain(arms, "10 clients, μ = 0.1", 0.18, "10 clients, μ = 0.1"),
        *(_gain(arms, f"ten strong, {mix}", 0.12, f"ten strong scanners, {mix}") for mix in ("μ = 0.3", "alike")),
        *(_against(arms, f"two of ten odd, {mix}", f"no scanners, {mix}", -0.04) for mix in ("μ = 0.3", "alike")),
        _outage(arms, "60 % of 10 clients gone after a step", "10 clients, μ = 0.1"),
        _outage(arms, "60 % of 100 clients gone after a step", "nothing left out"),
        _traffic(arms.get(("10 clients, μ = 0.1", OURS)), "10 clients"),
        _worst(arms),
    ]
    return _as_goals(goals)


def _as_goals(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [replace(verdict, kind="our goal") for verdict in verdicts]


def gains_of(ours: ArmResult | None, other: ArmResult | None) -> dict[int, float]:
    """The difference of every seed that both have."""
    if ours is None or other is None:
        return {}
    mine, theirs = ours.by_seeds(), other.by_seeds()
    return {seeds[0]: mine[seeds] - theirs[seeds] for seeds in sorted(mine) if seeds in theirs}


def _gain(arms: Results, setting: str, goal: float, where: str) -> Verdict:
    claim = f"{where}: {100 * goal:g} points over the labels alone"
    ours, alone = arms.get((setting, OURS)), arms.get((setting, SERVER_ONLY))
    if not (gains := gains_of(ours, alone)) or ours is None or alone is None:
        return no_runs(claim, "")
    worst = f"worst seed {100 * min(gains.values()):+.1f}"
    return weigh(claim, "", difference(ours, alone), _at_least(goal, worst), signed=True)


def _at_least(goal: float, worst: str) -> Callable[[Interval], tuple[Agrees, str]]:
    """Judge a gain by its mean alone: a goal is met or missed."""
    return lambda m: ("yes" if m.mean >= goal else "no", f"{worst}; {plus_minus(m.se)}")


def _significant(arms: Results, setting: str, where: str) -> Verdict:
    claim = f"{where}: significant, and no seed below −1"
    ours, alone = arms.get((setting, OURS)), arms.get((setting, SERVER_ONLY))
    gains = gains_of(ours, alone)
    if not gains or ours is None or alone is None:
        return no_runs(claim, "")

    def judge(m: Interval) -> tuple[Agrees, str]:
        met = m.significant and m.mean > 0 and min(gains.values()) >= HARM
        return "yes" if met else "no", f"worst seed {100 * min(gains.values()):+.1f}; {interval(m)}"

    return weigh(claim, "", difference(ours, alone), judge, signed=True)


def _against(arms: Results, setting: str, undisturbed: str, least: float) -> Verdict:
    """The worst seed against the same sites without what disturbs them."""
    claim = f"{setting}: worst seed at least {100 * least:g} against {undisturbed.split(',', maxsplit=1)[0]}"
    gains = gains_of(arms.get((setting, OURS)), arms.get((undisturbed, OURS)))
    if not gains:
        return no_runs(claim, "")
    worst = min(gains.values())
    return Verdict(claim, "", _seeds(gains), "yes" if worst >= least else "no", "", None, len(gains))


def _outage(arms: Results, setting: str, undisturbed: str) -> Verdict:
    claim = f"{setting}: costs at most 1 point"
    gains = gains_of(arms.get((setting, OURS)), arms.get((undisturbed, OURS)))
    if not gains:
        return no_runs(claim, "")
    mean = sum(gains.values()) / len(gains)
    return Verdict(claim, "", _seeds(gains), "yes" if mean >= HARM else "no", f"mean {points(mean, True)}", None, 3)


def _seeds(gains: dict[int, float]) -> str:
    return ", ".join(f"{100 * gain:+.1f}" for gain in gains.values()) + f" points (seeds {', '.join(map(str, gains))})"


def bytes_up(run: Run) -> float:
    """Bytes that a client sent on average in the whole run."""
    return sum(record["bytes_up"] for record in run.records) / int(run.document["clients"])


def _traffic(arm: ArmResult | None, where: str) -> Verdict:
    claim = f"{where}: at most {BYTES // 1000} kB up from a client in the whole run"
    if arm is None or not arm.runs:
        return no_runs(claim, "")
    most = max(bytes_up(run) for run in arm.runs)
    return Verdict(
        claim, "", f"{most / 1000:.0f} kB at most", "yes" if most <= BYTES else "no", "", None, len(arm.runs)
    )


def _worst(arms: Results) -> Verdict:
    """The worst single run against the labels alone, over all settings with the method as it is."""
    claim = "no single run of these tables more than 1 point below the labels alone"
    gains: dict[str, tuple[float, str, int]] = {}
    for (setting, label), arm in arms.items():
        if label == OURS and "ABLATED" not in str(arm.arm.overrides["method.name"]):
            names = {run.seed: run.name for run in arm.runs}  # tables share runs
            for seed, gain in gains_of(arm, arms.get((setting, SERVER_ONLY))).items():
                gains.setdefault(names[seed], (gain, setting, seed))
    if not gains:
        return no_runs(claim, "")
    worst, setting, seed = min(gains.values())
    below = sum(gain < HARM for gain, *_ in gains.values())
    words = f"{below} of {len(gains)} runs are further below" if below else f"{len(gains)} runs"
    got = f"{100 * worst:+.1f} points ({setting}, seed {seed})"
    return Verdict(claim, "", got, "no" if below else "yes", words, None, len(gains))
