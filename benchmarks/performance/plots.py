"""The plots of docs/understand/performance.md."""

from pathlib import Path
from typing import Any

from benchmarks.performance.peers_table import NAMES, model_name
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedfew.interface.charts.printed import COLOURS, save

GREY = "#adb5bd"
SHADES = {
    "pool": COLOURS[0],
    "inline": "#7fa8c2",
    "inline-threads": "#b3cbdb",
    "torch": COLOURS[1],
    "flower": COLOURS[2],
}
PHASES = ("server", "clients", "aggregate", "evaluate", "checkpoint")


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """A figure for each existing result."""
    figures = {"peers": peers, "phases": phases, "scaling": scaling}
    written = []
    for name, figure in figures.items():
        if name in results:
            written += save(figure(results[name]), folder / name, ("svg",))
    return written


def _sheet(columns: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, n + 1) for n in range(columns)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def peers(result: dict[str, Any]) -> Figure:
    """Seconds of a round: a bar for each contestant, every timed round a dot, the floor a line."""
    workloads = result["workloads"]
    figure, axes = _sheet(len(workloads), 3.0)
    for axis, measured in zip(axes, workloads.values(), strict=True):
        kinds = list(measured["contestants"])
        for level, kind in enumerate(kinds):
            one = measured["contestants"][kind]
            axis.barh(level, one["seconds"], color=SHADES[kind], height=0.62)
            axis.plot(one["all"], [level] * len(one["all"]), ".", color="#212529", markersize=3.5, alpha=0.7)
            axis.annotate(
                f"{one['seconds']:.2f} s", (max(one["seconds"], *one["all"]), level), (5, 0),
                textcoords="offset points", va="center", fontsize=8.5,
            )  # fmt: skip
        if measured["floor_seconds"]:
            axis.axvline(measured["floor_seconds"], color="#212529", linewidth=1, linestyle=(0, (4, 2)))
            axis.annotate(
                "arithmetic's floor", (measured["floor_seconds"], len(kinds) - 0.45), (3, 0),
                textcoords="offset points", fontsize=8, va="center",
            )  # fmt: skip
        axis.set_yticks(range(len(kinds)), [NAMES[kind] for kind in kinds])
        axis.set_ylim(len(kinds) - 0.25, -0.6)
        axis.set_xlim(0, 1.18 * max(max(one["all"]) for one in measured["contestants"].values()))
        axis.set_title(f"{measured['model']}: {measured['clients']} clients × {measured['images']} images", fontsize=10)
        axis.set_xlabel("seconds of a round's clients and aggregation")
    return figure


def phases(result: dict[str, Any]) -> Figure:
    """A bar of a round by phase, and a bar of one client by kind of operation, for each workload."""
    workloads = result["workloads"]
    figure, axes = _sheet(2, 1.5 + 0.9 * len(workloads))
    for level, (_, measured) in enumerate(workloads.items()):
        _stack(axes[0], level, {name: measured["phases"][name] for name in PHASES})
        _stack(axes[1], level, measured["client"]["seconds"])
    for axis, title in zip(axes, ("a round", "inside one client"), strict=True):
        axis.set_yticks(
            range(len(workloads)), [model_name(name, measured["width"]) for name, measured in workloads.items()]
        )
        axis.set_ylim(len(workloads) - 0.5, -0.5)
        axis.set_title(title, fontsize=10)
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        handles, labels = axis.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        axis.legend(
            unique.values(), unique.keys(), ncols=3, fontsize=8, frameon=False, loc="upper center",
            bbox_to_anchor=(0.5, -0.18),
        )  # fmt: skip
    return figure


def _stack(axis: Axes, level: int, seconds: dict[str, float]) -> None:
    total, left = sum(seconds.values()), 0.0
    for number, (name, value) in enumerate(seconds.items()):
        share = value / total
        axis.barh(level, share, left=left, color=[*COLOURS, GREY][number], height=0.55, label=name)
        if share > 0.07:
            axis.text(left + share / 2, level, f"{share:.0%}", ha="center", va="center", color="white", fontsize=8.5)
        left += share


def scaling(result: dict[str, Any]) -> Figure:
    """Milliseconds around the training against K, and the server's peak memory against K and m."""
    figure, (left, right) = _sheet(2, 3.4)
    every = result["rows"]
    for number, workers in enumerate((0, 2)):
        chosen = [row for row in every if row["family"] == "K" and row["workers"] == workers]
        label = f"pool of {workers}" if workers else "inline"
        x = [row["K"] for row in chosen]
        left.plot(x, [1e3 * row["around"] for row in chosen], "o-", color=COLOURS[number], label=label)
    left.axhline(5, color=GREY, linewidth=1, linestyle=(0, (4, 2)), label="target")
    left.set_xscale("log")
    left.set_ylim(0)
    left.set_xlabel("clients in all, K (ten of them a round)")
    left.set_ylabel("milliseconds a round\naround the training")
    left.legend(frameon=False, fontsize=8.5)
    populations = [row for row in every if row["family"] == "K" and row["workers"] == 0]
    cohorts = [row for row in every if row["family"] == "m"]
    right.plot(
        [r["K"] for r in populations], [r["peak_mb"] for r in populations], "o-", color=COLOURS[0], label="K clients"
    )
    right.plot(
        [r["m"] for r in cohorts], [r["peak_mb"] for r in cohorts], "s-", color=COLOURS[3], label="m clients a round"
    )
    right.set_xscale("log")
    right.set_ylim(0, 1.2 * max(row["peak_mb"] for row in populations + cohorts))
    right.set_xlabel("clients")
    right.set_ylabel("server's peak memory, MB")
    right.legend(frameon=False, fontsize=8.5, loc="lower right")
    return figure
