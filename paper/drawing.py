"""The paper's figures and the figure of a comparison, drawn with matplotlib from the run folders alone."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from fedfew.interface.charts.printed import COLOURS, percent, sheet
from fedfew.runtime.record import RoundRecord
from paper.ablation import PUBLISHED, coverage, damping, unequal
from paper.arms import ALL_LABELS, DAMPED, PANELS, POOLED, SERVER_ONLY
from paper.results import ArmResult, Results

Measure = Callable[[RoundRecord], float | None]
BOUND_STYLE: dict[str, dict[str, Any]] = {
    SERVER_ONLY: {"color": "#6c757d", "linestyle": (0, (4, 2))},
    ALL_LABELS: {"color": "#343a40", "linestyle": (0, (1, 1.5))},
    POOLED: {"color": "#343a40", "linestyle": (0, (5, 1.5))},
}
STYLES: dict[str, dict[str, Any]] = {
    "FedMix + FedFreq": {"color": COLOURS[0]},
    "FedMix + FedAvg": {"color": COLOURS[7], "linestyle": "-"},
    "FedMix + uniform mean": {"color": COLOURS[4]},
    "FedMatch + FedFreq": {"color": COLOURS[1]},
    "FedMatch + FedAvg": {"color": COLOURS[3]},
} | BOUND_STYLE


def draw(figure: str, arms: Results) -> Figure:
    """Draw a figure by name."""
    return {"fig4": _panels, "fig5": _panels, "fig6a": _levels, "fig6b": _labels, "extra": _extra,
            "ablation": _ablation, "recipe": _one_panel, "groupnorm": _one_panel}[figure](arms)  # fmt: skip


def _panels(arms: Results) -> Figure:
    """Accuracy by round, IID and non-IID side by side."""
    figure = sheet(10.4, 4.4)
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for axis, panel in zip(axes, PANELS, strict=True):
        curves(axis, [arm for key, arm in arms.items() if key[0] == panel])
        axis.set_title(panel)
    if ("non-IID", "FedMix + FedFreq") in arms:
        _reported(axes[1], 0.475)
    axes[0].set_ylabel("test accuracy")
    legend(figure, axes)
    return figure


def _one_panel(arms: Results) -> Figure:
    """Accuracy by round."""
    figure = sheet(6.4)
    axis = figure.subplots()
    curves(axis, list(arms.values()))
    axis.set_ylabel("test accuracy")
    if axis.lines:
        axis.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def _curves_and_more(arms: Sequence[ArmResult], title: str = "") -> tuple[Figure, Axes]:
    """A figure with accuracy by round on the left, and its empty right panel."""
    figure = sheet(10.4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    curves(left, arms)
    left.set_ylabel("test accuracy")
    left.legend(fontsize=8, frameon=False, loc="lower right")
    if title:
        left.set_title(title, fontsize=10)
    return figure, right


def _levels(arms: Results) -> Figure:
    """Figure 6a: curves, and accuracy against μ between the bounds."""
    figure, right = _curves_and_more(list(arms.values()))
    levels = [arm for arm in arms.values() if arm.arm.x is not None]
    dots(right, levels, "FedMix + FedFreq", color=COLOURS[0])
    for label in (SERVER_ONLY, ALL_LABELS, POOLED):
        _bound(right, arms.get(("", label)), label)
    right.set_xscale("log")
    right.set_xticks([arm.arm.x or 1.0 for arm in levels], [f"{arm.arm.x:g}" for arm in levels])
    right.xaxis.set_minor_locator(NullLocator())
    right.set_xlabel("μ  (left: non-IID, right: close to IID)")
    finish(right)
    return figure


def _labels(arms: Results) -> Figure:
    """Figure 6b: FedMix's curves by number of labels, and the accuracy of all methods against it."""
    ours = [arm for (_, label), arm in arms.items() if label.startswith("FedMix")]
    figure, right = _curves_and_more(ours, "FedMix + FedFreq")
    for name, colour in (("FedMix", COLOURS[0]), ("FedMatch", COLOURS[3]), (SERVER_ONLY, "#6c757d")):
        dots(right, [arm for (_, label), arm in arms.items() if label.startswith(name)], name, color=colour)
    right.plot([800], [0.47], "*", color=COLOURS[0], markersize=9, fillstyle="none", label="FedMix in the paper")
    right.set_xticks(sorted({arm.arm.x for arm in arms.values() if arm.arm.x is not None}))
    right.set_xlabel("labels at the server, $N_s$")
    finish(right)
    return figure


def _extra(arms: Results) -> Figure:
    """Curves by aggregation rule, and how often the clients took part."""
    figure, right = _curves_and_more(list(arms.values()))
    for (_, label), arm in arms.items():
        if label in BOUND_STYLE or not arm.runs:
            continue
        shares = np.mean([weight_by_rank(run.records, run.document["clients"]) for run in arm.runs], axis=0)
        right.plot(
            np.arange(1, len(shares) + 1), np.cumsum(shares), label=label, linewidth=1.6, **STYLES.get(label, {})
        )
    right.set_xlabel("clients, those that took part most often first")
    right.set_ylabel("share of all weight given")
    finish(right)
    return figure


def _ablation(arms: Results) -> Figure:
    """What γ costs and why, how far FedFreq's weights are from equal ones, and how many pseudo-labels exceed τ."""
    figure = sheet(10.4, 7.2)
    (accuracy, steps), (weights, labels) = figure.subplots(2, 2)
    curves(accuracy, list(arms.values()))
    accuracy.set_ylabel("test accuracy")
    accuracy.legend(fontsize=8, frameon=False, loc="lower right")
    for i, name in enumerate(DAMPED):
        _by_round(steps, arms["", name], damping, name, COLOURS[i])
    steps.axhline(1.0, linewidth=1.2, **BOUND_STYLE[SERVER_ONLY])
    steps.set_ylabel("a round's step, by the server's own")
    _by_round(weights, arms["", PUBLISHED], unequal, "FedFreq", COLOURS[0])
    weights.axhline(0.0, linewidth=1.2, label="equal weights", **BOUND_STYLE[SERVER_ONLY])
    weights.set_ylabel("distance of weights from an equal share")
    for i, name in enumerate(DAMPED):
        _by_round(labels, arms["", name], coverage, name, COLOURS[i])
    labels.set_ylabel("images with a label above τ")
    for axis in (steps, weights, labels):
        axis.set_xlabel("round")
        axis.set_ylim(bottom=0.0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        finish(axis)
    return figure


def _by_round(axis: Axes, arm: ArmResult, of: Measure, label: str, colour: str) -> None:
    """A measure of each round's record, averaged over the seeds."""
    by_round: dict[int, list[float]] = {}
    for record in (record for run in arm.runs for record in run.records):
        if (value := of(record)) is not None:
            by_round.setdefault(record["round"], []).append(value)
    if not (rounds := sorted(by_round)):
        return
    axis.plot(rounds, [float(np.mean(by_round[n])) for n in rounds], label=label, linewidth=1.4, color=colour)


def weight_by_rank(records: Sequence[RoundRecord], clients: int) -> NDArray[np.float64]:
    """The share of all weight that each client received in a run, the most frequent client first."""
    times, weight = np.zeros(clients), np.zeros(clients)
    for record in records:
        for client, share in record["weights"].items():
            times[int(client)] += 1
            weight[int(client)] += share or 0.0
    ordered: NDArray[np.float64] = weight[np.lexsort((-weight, -times))] / max(float(weight.sum()), 1e-12)
    return ordered


def curves(axis: Axes, arms: Sequence[ArmResult]) -> None:
    """Mean accuracy by round with a band of one standard deviation; unfinished runs are named."""
    short: dict[str, str] = {}
    for i, arm in enumerate(arms):
        if not arm.runs:
            continue
        label, style = arm.arm.label, STYLES.get(arm.arm.label) or {"color": COLOURS[i % len(COLOURS)]}
        length = min(run.done for run in arm.runs)
        accuracies = np.array([run.curve()[:length] for run in arm.runs])
        scored = np.flatnonzero(~np.isnan(accuracies).any(0))
        table = accuracies[:, scored]
        rounds, middle = scored + 1, table.mean(0)
        if length < arm.runs[0].planned:
            short[label] = f"to round {length} of {arm.runs[0].planned}"
        bold = 1.2 if label in BOUND_STYLE else 1.6
        axis.plot(rounds, middle, label=label, linewidth=bold, marker="." if length < 5 else "", **style)
        if len(table) > 1:
            sd = table.std(0, ddof=1)
            axis.fill_between(rounds, middle - sd, middle + sd, color=style["color"], alpha=0.15, linewidth=0)
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if short:
        alike = len(set(short.values())) == 1 and len(short) == len(axis.lines)
        lines = [next(iter(short.values()))] if alike else [f"{label} {reached}" for label, reached in short.items()]
        words = f"not finished:{' ' if alike else chr(10)}" + "\n".join(lines)
        x, y, side = (0.99, 0.92, "right") if alike else (0.02, 0.98, "left")
        axis.text(x, y, words, transform=axis.transAxes, fontsize=7, va="top", ha=side, color="#b23a48")
    finish(axis, legend=False)


def _reported(axis: Axes, accuracy: float) -> None:
    """The accuracy in the paper, as a thin line."""
    axis.axhline(accuracy, color="#868e96", linewidth=0.8, zorder=0)
    axis.text(
        0.01, accuracy, f"paper: {100 * accuracy:g} %", transform=axis.get_yaxis_transform(), fontsize=7,
        va="bottom", color="#495057",
    )  # fmt: skip


def dots(axis: Axes, arms: Sequence[ArmResult], label: str, **style: Any) -> None:
    """Accuracy against the arms' x, mean ± sd."""
    known = [(arm.arm.x or 0.0, value) for arm in arms if (value := arm.accuracy) is not None]
    if known:
        known.sort(key=lambda entry: entry[0])
        x, y, sd = zip(*((x, value.mean, value.sd or 0.0) for x, value in known), strict=True)
        how: dict[str, Any] = {"marker": "o", "markersize": 5, "capsize": 3, "linewidth": 1.4} | style
        axis.errorbar(x, y, yerr=sd, label=label, **how)


def _bound(axis: Axes, arm: ArmResult | None, label: str) -> None:
    if arm is not None and arm.accuracy is not None:
        axis.axhline(arm.accuracy.mean, label=label, linewidth=1.2, **BOUND_STYLE[label])


def finish(axis: Axes, *, legend: bool = True) -> None:
    axis.yaxis.set_major_formatter(FuncFormatter(percent))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)
    if legend and axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False)


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below the panels, since they show the same arms."""
    shown: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        shown = dict(zip(labels, handles, strict=True)) | shown
    if shown:
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
