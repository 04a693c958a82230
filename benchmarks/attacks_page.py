"""The figure and the tables of docs/understand/security.md, from the finished cells of the attack benchmark."""

from collections import defaultdict
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from statistics import mean, stdev

from benchmarks.attack_crafts import MODELS, SUMS
from matplotlib.figure import Figure

from fedfew.interface.charts.printed import save

Row = dict[str, str]
Key = tuple[str, str, str, int]
"""Method, defence, attack and the number of hostile clients."""
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
ORDER = ("fedmix", "fedfew", "fedmatch", "semifl", "fedmoments")
NAMES = [name for name in MODELS | SUMS if name != "absent"] + ["absent"]
PANELS = {
    ("none", 4): "no screen, 4 hostile",
    ("default", 4): "default, 4 hostile",
    ("default", 1): "default, 1 hostile",
}
FIGURE = "attacks"


def write(rows: Sequence[Row], page: Path) -> None:
    """Replace the text between the page's markers, and draw the figure next to it."""
    usual = [row for row in rows if row["mu"] == "0.5"]
    parts = [
        _ran(rows),
        "### The goals, with default settings",
        _goals(usual),
        f"![Points of accuracy lost to hostile clients]({page.stem}/{FIGURE}.svg)",
        "### Default settings: points lost (± standard error over the seeds), by the number of hostile clients of 20",
        _by_attack(usual, "default"),
        "### Four hostile clients of 20, by defence: points lost in the mean, and at worst",
        _by_defence(usual),
        "### Honest clients that were refused or scaled down, default settings",
        _accused(rows),
        "### Backdoor of four hostile clients: patched images taken for the target class, %",
        _backdoor(usual),
    ]
    text = page.read_text("utf-8")
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + rest.split(END)[1], "utf-8")
    save(figure(usual), page.parent / page.stem / FIGURE, ("svg",))


def clean(rows: Sequence[Row]) -> dict[tuple[str, str, str, str], float]:
    """Accuracy without hostile clients, by method, defence, skew and seed."""
    return {_place(row): float(row["accuracy"]) for row in rows if row["attack"] == "none"}


def _place(row: Row) -> tuple[str, str, str, str]:
    return row["method"], row["defence"], row["mu"], row["seed"]


def losses(rows: Sequence[Row]) -> dict[Key, list[float]]:
    """Points below the clean run with default settings, one for each seed."""
    accuracies, result = clean(rows), defaultdict(list)
    for row in rows:
        base = accuracies.get((row["method"], "default", row["mu"], row["seed"]))
        if row["attack"] != "none" and base is not None:
            key = (row["method"], row["defence"], row["attack"], int(row["hostile"]))
            result[key].append(base - float(row["accuracy"]))
    return dict(result)


def lost(rows: Sequence[Row]) -> dict[Key, float]:
    """The same, the mean over seeds."""
    return {key: mean(values) for key, values in losses(rows).items()}


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _points(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def _with_error(values: Sequence[float] | None) -> str:
    if not values:
        return "–"
    error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return _points(mean(values)) + error


def _methods(rows: Sequence[Row]) -> list[str]:
    there = {row["method"] for row in rows}
    return [name for name in ORDER if name in there]


def _ran(rows: Sequence[Row]) -> str:
    seeds = {row["seed"] for row in rows}
    minutes = sum(float(row["seconds"]) for row in rows) / 60
    return f"{len(rows):,} cells of up to {len(seeds)} seeds, {minutes:.0f} minutes of one core."


def _goals(rows: Sequence[Row]) -> str:
    """The worst attack on each method, next to clients that do not answer."""
    result, body = losses(rows), []
    for hostile, goal in ((4, 3.0), (1, 1.0)):
        line = [f"{'one client costs' if hostile == 1 else f'{hostile} of 20 cost'} at most {goal:g}"]
        for method in _methods(rows):
            cells = {k[2]: v for k, v in result.items() if (k[0], k[1], k[3]) == (method, "default", hostile)}
            silent = cells.pop("absent", None)
            if not cells:
                line.append("–")
                continue
            worst = max(cells, key=lambda name: mean(cells[name]))
            line.append(f"{worst} {_with_error(cells[worst])}" + (f"; absent {_with_error(silent)}" if silent else ""))
        body.append(line)
    accused, doors = ["honest clients refused: below 1 %"], ["backdoor of 4 of 20 below 10 %"]
    for method in _methods(rows):
        there = [row for row in rows if (row["method"], row["defence"]) == (method, "default")]
        accused.append(f"{sum(int(r['honest_refused']) for r in there)} of {sum(int(r['honest']) for r in there):,}")
        opened = defaultdict(list)
        for row in there:
            if "backdoor" in row["attack"] and row["hostile"] == "4":
                opened[row["attack"]].append(float(row["backdoor"]))
        seeds = {row["seed"] for row in there if "backdoor" in row["attack"] and row["hostile"] == "4"}
        shut = [float(row["backdoor"]) for row in there if row["attack"] == "none" and row["seed"] in seeds]
        doors.append(f"{max(map(mean, opened.values())):.1f}; without attack {mean(shut):.1f}" if opened else "–")
    return _table(["goal, and the worst found", *_methods(rows)], [*body, accused, doors])


def _by_attack(rows: Sequence[Row], defence: str) -> str:
    result, accuracies = losses(rows), clean(rows)
    columns = [(m, h) for m in _methods(rows) for h in sorted({k[3] for k in result if k[:2] == (m, defence)})]
    body = [
        [name, *(_with_error(result.get((m, defence, name, h))) for m, h in columns)]
        for name in NAMES
        if any((m, defence, name, h) in result for m, h in columns)
    ]
    bases = [mean(a for (method, d, _, _), a in accuracies.items() if (method, d) == (m, defence)) for m, _ in columns]
    body.append(["accuracy without hostile clients", *(f"{base:.1f}" for base in bases)])
    return _table(["attack", *(f"{m}, {h}" for m, h in columns)], body)


def _by_defence(rows: Sequence[Row]) -> str:
    result, accuracies, body = lost(rows), clean(rows), []
    for name in dict.fromkeys(d for _, d, _, h in result if h == 4):
        line = [name]
        for method in _methods(rows):
            values = {
                k[2]: v for k, v in result.items() if (k[0], k[1], k[3]) == (method, name, 4) and k[2] != "absent"
            }
            if not values:
                line.append("–")
                continue
            worst = max(values, key=values.__getitem__)
            cost = [
                accuracies[method, "default", mu, s] - v
                for (m, d, mu, s), v in accuracies.items()
                if (m, d) == (method, name)
            ]
            text = f"{_points(mean(values.values()))}, {_points(values[worst])} ({worst})"
            line.append(text + (f"; without attack {_points(mean(cost))}" if name != "default" and cost else ""))
        body.append(line)
    return _table(["defence", *_methods(rows)], body)


def _accused(rows: Sequence[Row]) -> str:
    body = []
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["defence"] == "default":
            groups[row["method"], row["mu"], "no" if row["attack"] == "none" else "yes"].append(row)
    for (method, mu, attacked), there in sorted(
        groups.items(), key=lambda item: (ORDER.index(item[0][0]), item[0][1:])
    ):
        honest, refused, scaled = (
            sum(int(r[key]) for r in there) for key in ("honest", "honest_refused", "honest_scaled")
        )
        bad, caught, shortened = (
            sum(int(r[key]) for r in there) for key in ("attackers", "attackers_refused", "attackers_scaled")
        )
        hostile = f"{caught} refused, {shortened} scaled of {bad}" if bad else "–"
        body.append([f"{method}, μ = {mu}", attacked, str(honest), f"{refused} ({100 * refused / honest:.1f} %)",
                     f"{scaled} ({100 * scaled / honest:.1f} %)", hostile])  # fmt: skip
    return _table(["method", "under attack", "honest updates", "refused", "scaled", "hostile updates"], body)


def _backdoor(rows: Sequence[Row]) -> str:
    methods = [m for m in _methods(rows) if m != "fedmoments"]
    cells: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["attack"] == "none" or ("backdoor" in row["attack"] and row["hostile"] == "4"):
            cells[row["method"], row["defence"], row["attack"]].append(float(row["backdoor"]))
    lines = sorted({key[1:] for key in cells if key[0] in methods}, key=lambda at: (at[0] != "default", *at))
    body = [
        [f"{d}, {a.replace('none', 'no attack')}",
         *(f"{mean(cells[m, d, a]):.1f}" if (m, d, a) in cells else "–" for m in methods)]
        for d, a in lines
    ]  # fmt: skip
    return _table(["defence", *methods], body)


def figure(rows: Sequence[Row]) -> Figure:
    """A square for each method and attack, one panel for each defence and number of hostile clients."""
    result, methods = lost(rows), _methods(rows)
    panels = [panel for panel in PANELS if any((k[1], k[3]) == panel for k in result)]
    names = [name for name in NAMES if any(k[2] == name and (k[1], k[3]) in panels for k in result)]
    sheet = Figure(figsize=(3.9 * len(panels) + 2, 0.4 * len(names) + 1.4), layout="constrained")
    for column, panel in enumerate(panels):
        axis = sheet.add_subplot(1, len(panels), column + 1)
        table = [[result.get((m, panel[0], name, panel[1]), float("nan")) for m in methods] for name in names]
        shown = axis.imshow(table, cmap="RdYlGn_r", vmin=-5, vmax=40, aspect="auto")
        axis.set_xticks(range(len(methods)), methods, fontsize=8)
        axis.set_yticks(range(len(names)), names if not column else [""] * len(names))
        axis.set_title(PANELS[panel], fontsize=10)
        for y, line in enumerate(table):
            for x, value in enumerate(line):
                if not isnan(value):
                    axis.text(x, y, _points(value), ha="center", va="center", fontsize=8.5)
    sheet.colorbar(shown, ax=sheet.axes, label="points of accuracy lost", shrink=0.8)
    sheet.suptitle("Hostile clients among twenty: points of accuracy lost", fontsize=11)
    return sheet
