"""The figures of the few-labels study."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedfew.interface.charts.printed import COLOURS, sheet
from paper.arms import POOLED, SERVER_ONLY
from paper.drawing import BOUND_STYLE, dots, finish, legend
from paper.few import FEW, FEW_LABELS, FL2, OURS, ROWS, SKEWS, SPREAD
from paper.few_page import groups
from paper.goals import gains_of
from paper.results import Results

PART = "Parts of fedmoments"
"""The table that is not drawn."""


def draw(name: str, arms: Results) -> Figure:
    """Draw a figure by name."""
    return _by_labels_and_skew(arms) if name == FEW else _gains(arms)


def _by_labels_and_skew(arms: Results) -> Figure:
    """Accuracy against the number of labels, and against the skew of the clients, for every row."""
    figure = sheet(10.4, 4.6)
    axes = figure.subplots(1, 2, sharey=True)
    panels = [f"{n} labels" for n in FEW_LABELS], list(SKEWS)
    for axis, settings in zip(axes, panels, strict=True):
        for i, row in enumerate(ROWS):
            own = [arms[setting, row] for setting in settings if (setting, row) in arms]
            dots(axis, own, NAMED.get(row, row), **(BOUND_STYLE.get(row) or {"color": COLOURS[(i, 6)[row == FL2]]}))
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
        finish(axis, legend=False)
    axes[0].set_xticks(FEW_LABELS, [str(n) for n in FEW_LABELS])
    axes[0].set_xlabel("labels at the server  (clients at μ = 0.1)")
    axes[0].set_ylabel("test accuracy")
    axes[1].set_xticks([x for x, _ in SKEWS.values()], [skew.removeprefix("μ = ") for skew in SKEWS])
    axes[1].set_xlabel("μ: how alike the clients are  (40 labels)")
    legend(figure, list(axes))
    return figure


NAMED = {SERVER_ONLY: "labels alone", POOLED: "all true labels, in one place"}


def _gains(arms: Results) -> Figure:
    """For each setting the gain over the labels alone, every seed a dot, and what all true labels would gain."""
    shown: list[tuple[str, list[str]]] = []
    for title, settings in groups("", arms).items():
        run = [setting for setting in settings if gains_of(arms[setting, OURS], arms.get((setting, SERVER_ONLY)))]
        if run and not title.startswith(PART):
            shown.append((title, run))
    figure = sheet(8.4, 0.5 + 0.27 * sum(len(run) + 1.4 for _, run in shown))
    axis = figure.subplots()
    row, ticks = 0.0, []
    for title, run in shown:
        axis.text(0.0, row, title, transform=axis.get_yaxis_transform(), fontsize=9, fontweight="bold", va="center")
        row += 1
        for setting in run:
            _line(axis, arms, setting, row)
            ticks.append((row, setting))
            row += 1
        row += 0.4
    axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axis.set_ylim(row - 0.4, -0.8)
    axis.axvline(0.0, linewidth=1.2, **BOUND_STYLE[SERVER_ONLY])
    axis.set_xlabel("points over the labels alone")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25, linewidth=0.6)
    if ticks:
        handles = dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _line(axis: Axes, arms: Results, setting: str, row: float) -> None:
    alone = arms[setting, SERVER_ONLY]
    gains = [100 * gain for gain in gains_of(arms[setting, OURS], alone).values()]
    mean, colour = sum(gains) / len(gains), COLOURS[0]
    axis.plot([0, mean], [row, row], color=colour, linewidth=2.2, alpha=0.35, solid_capstyle="butt")
    axis.plot(gains, [row] * len(gains), "o", color=colour, markersize=3.5, label="a seed")
    axis.plot([mean], [row], "|", color=colour, markersize=11, markeredgewidth=2, label="mean")
    for other, marker, label in ((SPREAD, "x", "label propagation, pooled"), (POOLED, "D", "all true labels, pooled")):
        if theirs := gains_of(arms.get((setting, other)), alone):
            at = 100 * sum(theirs.values()) / len(theirs)
            axis.plot([at], [row], marker, color="#343a40", markersize=4, fillstyle="none", label=label)
