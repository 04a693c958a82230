"""The figure and the tables of docs/security.md, from the finished cells of the attack bench."""

from collections import defaultdict
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from statistics import mean

from benchmarks.attack_crafts import ATTACKS
from matplotlib.figure import Figure

from fedfew.interface.charts.printed import save

Row = dict[str, str]
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"
ORDER = ("fedmix", "fedfew", "fedmatch", "semifl", "fedmoments")
FIGURE = "attacks"


def write(rows: Sequence[Row], page: Path) -> None:
    """Replace what stands between the marks of the page, and draw the figure beside it."""
    usual = [row for row in rows if row["mu"] == "0.5"]
    parts = [
        _ran(rows),
        f"![Points of accuracy lost to four hostile clients of twenty](images/{FIGURE}.png)",
        "### Default settings: points lost, by the number of hostile clients of 20",
        _by_attack(usual, "default"),
        "### Four hostile clients of 20, by defence: points lost in the mean, and at worst",
        _by_defence(usual),
        "### Honest clients that were refused or scaled down, default settings",
        _accused(rows),
        "### Backdoor: patched images taken for the target class, %",
        _backdoor(usual),
    ]
    text = page.read_text("utf-8")
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + rest.split(END)[1], "utf-8")
    save(figure(usual), page.parent / "images" / FIGURE, ("png",))


def clean(rows: Sequence[Row]) -> dict[tuple[str, str, str, str], float]:
    """Accuracy without hostile clients, by method, defence, skew and seed."""
    return {_place(row): float(row["accuracy"]) for row in rows if row["attack"] == "none"}


def _place(row: Row) -> tuple[str, str, str, str]:
    return row["method"], row["defence"], row["mu"], row["seed"]


def lost(rows: Sequence[Row]) -> dict[tuple[str, str, str, int], float]:
    """Points below the clean run with default settings, mean over seeds, by method, defence, attack and hostile."""
    whole, found = clean(rows), defaultdict(list)
    for row in rows:
        base = whole.get((row["method"], "default", row["mu"], row["seed"]))
        if row["attack"] != "none" and base is not None:
            key = (row["method"], row["defence"], row["attack"], int(row["hostile"]))
            found[key].append(base - float(row["accuracy"]))
    return {key: mean(values) for key, values in found.items()}


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _points(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}".replace("-", "−")


def _methods(rows: Sequence[Row]) -> list[str]:
    there = {row["method"] for row in rows}
    return [name for name in ORDER if name in there]


def _ran(rows: Sequence[Row]) -> str:
    seeds = sorted({row["seed"] for row in rows}, key=int)
    seconds = sum(float(row["seconds"]) for row in rows)
    return f"{len(rows)} cells, seeds {', '.join(seeds)}, {seconds / 60:.0f} minutes of one process on a busy machine."


def _by_attack(rows: Sequence[Row], defence: str) -> str:
    found = lost(rows)
    counts = sorted({h for _, d, _, h in found if d == defence})
    columns = [(m, h) for m in _methods(rows) for h in counts if any(k[0] == m and k[3] == h for k in found)]
    whole = clean(rows)
    body = [
        [name, *(_points(found.get((m, defence, name, h))) for m, h in columns)]
        for name in ATTACKS
        if any((m, defence, name, h) in found for m, h in columns)
    ]
    bases = [mean(a for (method, d, _, _), a in whole.items() if (method, d) == (m, defence)) for m, _ in columns]
    body.append(["accuracy without hostile clients", *(f"{base:.1f}" for base in bases)])
    return _table(["attack", *(f"{m}, {h}" for m, h in columns)], body)


def _by_defence(rows: Sequence[Row]) -> str:
    found = lost(rows)
    names = list(dict.fromkeys(d for _, d, _, h in found if h == 4))
    whole, body = clean(rows), []
    for name in names:
        line = [name]
        for method in _methods(rows):
            values = {a: v for (m, d, a, h), v in found.items() if (m, d, h) == (method, name, 4)}
            if not values:
                line.append("–")
                continue
            worst = max(values, key=values.__getitem__)
            cost = [
                whole[(method, "default", mu, s)] - v for (m, d, mu, s), v in whole.items() if (m, d) == (method, name)
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
    cells: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row["attack"] in ("none", "backdoor", "quiet backdoor"):
            cells[row["method"], row["defence"], row["attack"], int(row["hostile"])].append(float(row["backdoor"]))
    lines = sorted({key[1:] for key in cells}, key=lambda line: (line[0] != "default", line[0], line[2], line[1]))
    body = [[f"{d}, {f'{a}, {h} hostile' if h else 'no attack'}",
             *(f"{mean(cells[m, d, a, h]):.1f}" if (m, d, a, h) in cells else "–" for m in methods)]
            for d, a, h in lines]  # fmt: skip
    return _table(["defence", *methods], body)


def figure(rows: Sequence[Row]) -> Figure:
    """A square for each method and attack: without a defence and with the default."""
    found, methods = lost(rows), _methods(rows)
    names = [a for a in ATTACKS if any(k[2] == a and k[3] == 4 for k in found)]
    sheet = Figure(figsize=(11, 0.42 * len(names) + 1.4), layout="constrained")
    for place, defence in enumerate(("none", "default")):
        axis = sheet.add_subplot(1, 2, place + 1)
        table = [[found.get((m, defence, a, 4), float("nan")) for m in methods] for a in names]
        shown = axis.imshow(table, cmap="RdYlGn_r", vmin=-5, vmax=40, aspect="auto")
        axis.set_xticks(range(len(methods)), methods)
        axis.set_yticks(range(len(names)), names if not place else [""] * len(names))
        axis.set_title("the method's aggregator, no screen" if defence == "none" else "default settings", fontsize=10)
        for y, line in enumerate(table):
            for x, value in enumerate(line):
                if not isnan(value):
                    axis.text(x, y, f"{value:.1f}".replace("-", "−"), ha="center", va="center", fontsize=8.5)
    sheet.colorbar(shown, ax=sheet.axes, label="points of accuracy lost", shrink=0.8)
    sheet.suptitle("Four hostile clients of twenty, five a round", fontsize=11)
    return sheet
