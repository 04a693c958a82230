"""The section of a figure of the few-labels study: its drawing, one line for each setting, and the goals."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedfew.interface.charts.printed import COLOURS, sheet
from fedfew.studies.tables import as_csv
from paper.arms import ALL_LABELS, POOLED, SERVER_ONLY
from paper.drawing import BOUND_STYLE, dots, finish, legend
from paper.few import FEW, FEW_LABELS, FL2, NAMES, OURS, ROWS, SEMIFL, SETTINGS, SITES, SKEWS, SPREAD, VIEWS
from paper.goals import bytes_up, gains_of
from paper.measures import Verdict, difference, positive
from paper.results import ArmResult, Results

COLUMNS = {
    SERVER_ONLY: "labels alone",
    VIEWS: "labels alone, scanner-like views",
    NAMES: NAMES,
    SPREAD: SPREAD,
    SEMIFL: SEMIFL,
    FL2: FL2,
    OURS: OURS,
    ALL_LABELS: "true labels, FedAvg",
    POOLED: "true labels, pooled",
}
"""The heads of the columns, in their order."""


ANSWER: dict[str, tuple[str, str]] = {
    "chest X-rays, 20 labels, 10 sites that differ (μ = 0.3)": (SITES, "20 labels, 10 sites, μ = 0.3"),
    "chest X-rays, the same sites alike": (SITES, "20 labels, 10 sites, alike"),
    "chest X-rays, every site with its own scanner": (SITES, "20 labels, ten strong scanners, μ = 0.3"),
    "drawings, 25 labels, 20 sites that differ (μ = 0.1)": (SITES, "drawings, 25 labels, μ = 0.1"),
    "solar cells, 40 labels, 10 sites that differ (μ = 0.3)": (SITES, "solar cells, 40 labels, μ = 0.3"),
    "photographs, 40 labels, 100 sites that differ (μ = 0.1)": (FEW, "μ = 0.1"),
    "photographs, 100 alike sites": (FEW, "IID"),
    "photographs, 10 sites, each with its own scanner": (SITES, "ten strong, μ = 0.3"),
    "clothing, 40 labels, 100 sites that differ (μ = 0.1)": (SITES, "clothing, 40 labels, μ = 0.1"),
}
"""The lines of the first table of the page: a figure and a setting of it."""


def answer(figures: Mapping[str, Results], verdicts: Sequence[Verdict]) -> str:
    """The first table of the page, and the goals, from both figures."""
    rows = {title: (figures[name], setting) for title, (name, setting) in ANSWER.items() if name in figures}
    known = {title: at for title, at in rows.items() if at[0][at[1], OURS].runs}
    columns = (SERVER_ONLY, NAMES, SPREAD, OURS, POOLED)
    head = ["", "labels alone", "+ class names", "label propagation", "**with the sites**", "all true labels", "gain"]
    lines = ["| " + " | ".join([*head, "single seeds"]) + " |", "|" + "---|" * (len(head) + 1)]
    for title, (arms, setting) in known.items():
        cells = [_accuracy(arms.get((setting, row)), row == OURS, sd=False) for row in columns]
        lines.append("| " + " | ".join([title, *cells, *_gain(arms, setting)]) + " |")
    judged = [verdict for verdict in verdicts if verdict.agrees != "no runs yet"]
    goals = ["| goal | met? | we got |", "|---|---|---|"]
    for v in judged:
        words = f"{v.got}; {v.words}" if v.words else v.got
        goals.append(f"| {v.claim} | {'yes' if v.agrees == 'yes' else '**no**'} | {words} |")
    met = sum(verdict.agrees == "yes" for verdict in judged)
    fold = ["<details markdown>", f"<summary>Goals set beforehand: {met} of {len(judged)} met</summary>", ""]
    return "\n".join([*lines, "", *fold, *goals, "", "</details>"]) + "\n"


def groups(name: str, arms: Results) -> dict[str, list[str]]:
    """The settings of each table."""
    if name == FEW:
        settings = list(dict.fromkeys(setting for setting, _ in arms))
        by_labels, by_skew = settings[: len(FEW_LABELS)], settings[len(FEW_LABELS) :]
        return {"By the number of labels, 100 clients at μ = 0.1": by_labels, "By skew, 40 labels": by_skew}
    return {title: [setting.title for setting in settings] for title, settings in SETTINGS.items()}


def tables(name: str, arms: Results) -> list[str]:
    """A heading and a table for each group of settings that has runs."""
    parts = []
    for title, settings in groups(name, arms).items():
        run = [setting for setting in settings if arms[setting, OURS].runs or arms[setting, SERVER_ONLY].runs]
        if run:
            parts += [f"### {title}", table(arms, run)]
    return parts


def table(arms: Results, settings: Sequence[str]) -> str:
    """One line for each setting: every method's accuracy, and the gain of fedmoments over the labels alone."""
    present = [row for row in COLUMNS if any((arm := arms.get((s, row))) is not None and arm.runs for s in settings)]
    head = ["setting", *(f"**{OURS}**" if row == OURS else COLUMNS[row] for row in present), "gain", "seeds"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for setting in settings:
        cells = [_accuracy(arms.get((setting, row)), row == OURS) for row in present]
        lines.append("| " + " | ".join([setting, *cells, *_gain(arms, setting)]) + " |")
    return "\n".join(lines)


def _accuracy(arm: ArmResult | None, bold: bool, *, sd: bool = True) -> str:
    own = arm.accuracy if arm is not None else None
    if own is None:
        return ""
    mean = f"{100 * own.mean:.1f}"
    spread = f" ± {100 * own.sd:.1f}" if own.sd is not None and sd else ""
    return f"**{mean}**{spread}" if bold else f"{mean}{spread}"


def _gain(arms: Results, setting: str) -> tuple[str, str]:
    """The mean gain, with a star if it is significant, and that of every seed."""
    ours, alone = arms[setting, OURS], arms.get((setting, SERVER_ONLY))
    gains = gains_of(ours, alone)
    if not gains or alone is None or (m := difference(ours, alone)) is None:
        return "", ""
    star = "*" if positive(m)[0] == "yes" else ""
    return f"{100 * m.mean:+.1f}{star}", ", ".join(f"{100 * gain:+.1f}" for gain in gains.values())


def as_table(arms: Results) -> bytes:
    """One line for each run."""
    rows = [
        {
            "setting": setting, "row": label, "seed": run.seed, "accuracy": run.accuracy(),
            "kilobytes_up_per_client": round(bytes_up(run) / 1000, 1), "code": run.environment.get("git", ""),
        }
        for (setting, label), arm in arms.items()
        for run in arm.runs
    ]  # fmt: skip
    return as_csv(rows, ["setting", "row", "seed", "accuracy", "kilobytes_up_per_client", "code"])


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
