"""The charts of a run, computed from its records; each has a sentence that says what it shows."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal

from fedfew.core.errors import CODES
from fedfew.interface.charts import Bars, Figure, Grid, Level, Lines, Mark, Point, Series, Style, Unit
from fedfew.interface.charts.evaluation_charts import evaluation_figures
from fedfew.interface.charts.scale import amount
from fedfew.runs.intervals import Interval
from fedfew.runs.run import Run
from fedfew.runs.summary import scored
from fedfew.runtime.record import RoundRecord, left_out
from fedfew.studies.bounds import Bound

MOST_COLUMNS, MOST_ROWS, MOST_METRICS = 160, 120, 12
CHARTED = ("kept", "right", "coverage")
"""Clients' numbers that the charts of pseudo-labels show."""
Curve = Literal["accuracy", "accuracy_clients", "validation", "loss", "coverage", "correct"]


def figures_of(run: Run, bounds: Sequence[Bound] = (), others: Sequence[Run] = ()) -> list[Figure]:
    """All charts of a run that have something to show; ``others`` are overlaid on its accuracy and loss."""
    charts: list[Callable[[Run], Figure]] = [participation, partition, norms, cosines, traffic, phases]
    if any(r["coverage"] is not None for r in run.records):
        charts = [pseudo_labels, pseudo_classes, *charts]
    figures = [accuracy(run, bounds, others), loss(run, others), *(chart(run) for chart in charts if run.records)]
    figures += [*client_metrics(run), *evaluation_figures(run)]
    return [figure for figure in figures if not _empty(figure)]


def _empty(figure: Figure) -> bool:
    """Whether a chart would be empty axes: no values, or only zeros where they say nothing."""
    if isinstance(figure, Lines):
        known = [y for series in figure.series for y in series.y if y is not None]
        return not any(known) if figure.unit == "bytes" else not known
    if isinstance(figure, Bars):
        return not any(value for _, values in figure.series for value in values)
    return not figure.points and not figure.marks


def _rounds(records: Sequence[RoundRecord]) -> list[float]:
    return [float(r["round"]) for r in records]


def _curve(name: str, records: Sequence[RoundRecord], key: Curve, colour: int = 0, style: Style = "line") -> Series:
    """A value of each round."""
    return Series(name, _rounds(records), [r[key] for r in records], colour, style)


def _course(name: str, records: Sequence[RoundRecord], key: Curve, unit: Unit = "percent") -> str:
    """A curve in words."""
    known = [(r["round"], value) for r in records if (value := r[key]) is not None]
    if not known:
        return f"{name}: no values yet."
    first, last = known[0], known[-1]
    extreme = max(known, key=lambda p: p[1]) if unit == "percent" else min(known, key=lambda p: p[1])
    word = "highest" if unit == "percent" else "lowest"
    return (
        f"{name}: {amount(first[1], unit)} in round {first[0]}, {amount(last[1], unit)} in round {last[0]}, "
        f"{word} {amount(extreme[1], unit)} in round {extreme[0]}."
    )


def accuracy(run: Run, bounds: Sequence[Bound] = (), others: Sequence[Run] = ()) -> Lines:
    """Accuracy on the test set and on the validation images; the bounds as levels."""
    records = scored(run.records)
    series = [_curve("test" if not others else run.name, records, "accuracy")]
    if not others and any(r["validation"] is not None for r in records):
        series.append(_curve("validation", records, "validation", 1, "dashed"))
    clients = not others and any(r["accuracy_clients"] not in (None, r["accuracy"]) for r in records)
    if clients:
        series.append(_curve("clients' result, before the server's turn", records, "accuracy_clients", 2, "dashed"))
    series += [_curve(o.name, scored(o.records), "accuracy", i) for i, o in enumerate(others, 1)]
    drawn = {f"{b.title} ({b.mismatch})" if b.mismatch else b.title: b for b in bounds}
    levels = [Level(name, value) for name, b in drawn.items() if (value := b.accuracy()) is not None]
    about = _course("Accuracy on the test set", records, "accuracy")
    about += "".join(
        f" {level.name} reaches {amount(level.y, 'percent')}"
        f"{' so far, not finished' if drawn[level.name].unfinished else ''}."
        for level in levels
    )
    about += "".join(f" {_course(o.name, o.records, 'accuracy')}" for o in others)
    if clients:
        about += " " + _course("Clients' result before the server's turn", records, "accuracy_clients")
    return Lines("accuracy", "Accuracy", "round", "accuracy", series, "percent", levels, about)


def loss(run: Run, others: Sequence[Run] = ()) -> Lines:
    runs = [run, *others]
    series = [_curve(r.name if others else "loss", scored(r.records), "loss", i) for i, r in enumerate(runs)]
    about = " ".join(_course(r.name if others else "Test loss", r.records, "loss", "number") for r in runs)
    return Lines("loss", "Loss on the test set", "round", "cross-entropy", series, about=about)


def pseudo_labels(run: Run) -> Lines:
    """How many images got a confident label, and how many of these labels are correct."""
    records = run.records
    series = [_curve("coverage", records, "coverage")]
    about = _course("Coverage", records, "coverage")
    if any(r["correct"] is not None for r in records):
        series.append(_curve("correct", records, "correct", 2))
        about += " " + _course("Correct among them", records, "correct")
    return Lines(
        "pseudo-labels", "Pseudo-labels: coverage and correctness", "round", "share", series, "percent", about=about
    )


def pseudo_classes(run: Run) -> Bars:
    """The newest round's pseudo-labels by class, next to the true classes of the clients that answered."""
    newest = next(r for r in reversed(run.records) if r["coverage"] is not None)
    counts = [float(c) for c in newest["pseudo_classes"]]
    names = [str(n) for n in run.classes.get("classes", [])] or [str(i) for i in range(len(counts))]
    names += [str(i) for i in range(len(names), len(counts))]
    counts += [0.0] * (len(names) - len(counts))
    series: list[tuple[str, Sequence[float]]] = [("pseudo-labels", _shares(counts))]
    held = run.classes.get("clients") or []
    answered = [k for u in newest["updates"] if (k := u["client"]) < len(held) and len(held[k]) == len(names)]
    if answered:
        series.append(
            (f"{run.noun} held", _shares([float(sum(held[k][c] for k in answered)) for c in range(len(names))]))
        )
    total, top = sum(counts), max(range(len(names)), key=lambda c: counts[c])
    about = f"Round {newest['round']}: {amount(total, 'number')} {run.noun} have a pseudo-label"
    about += f"; most often {names[top]}, {amount(counts[top] / total, 'percent')}." if total else "."
    title = f"Pseudo-labels by class, round {newest['round']}"
    return Bars("pseudo-classes", title, "class", "share", names, series, "percent", about=about)


def _shares(counts: Sequence[float]) -> list[float]:
    return [c / sum(counts) if sum(counts) else 0.0 for c in counts]


def participation(run: Run) -> Grid:
    """Client × round: the weight of each update that counted, and a mark for each that did not."""
    records = run.records
    wide = -(-len(records) // MOST_COLUMNS)
    asked = sorted({k for r in records for k in r["cohort"]})
    if len(asked) > MOST_ROWS:
        often = Counter(k for r in records for k in r["cohort"])
        asked = sorted(sorted(asked, key=lambda k: -often[k])[:MOST_ROWS])
    row = {k: i for i, k in enumerate(asked)}
    weights: dict[tuple[int, int], list[float]] = {}
    marks: dict[tuple[int, int], Mark] = {}
    for i, r in enumerate(records):
        for k, weight in r["weights"].items():
            if int(k) in row:
                weights.setdefault((i // wide, row[int(k)]), [r["round"]]).append(weight or 0.0)
        for fault in left_out(r):
            if fault["client"] in row:
                cell = (i // wide, row[fault["client"]])
                note = f"client {fault['client']}, round {r['round']}: {fault['code']} {fault['reason']}"
                marks[cell] = Mark(*cell, kind=coded(fault["code"]), note=note)
    points = [
        Point(c, n, sum(known) / len(known), f"client {asked[n]}, round {first}")
        for (c, n), (first, *known) in sorted(weights.items())
    ]
    lost = sum(len(left_out(r)) for r in records)
    about = f"{len(asked)} of {run.client_count} clients were sampled in {len(records)} rounds; "
    about += f"{lost} updates did not count."
    if wide > 1:
        about += f" Each column is {wide} rounds, shaded by their mean weight."
    if len(asked) == MOST_ROWS:
        about += f" The {MOST_ROWS} clients sampled most often are shown."
    columns = [str(records[i]["round"]) for i in range(0, len(records), wide)]
    return Grid(
        "participation", "Participation and weights", "round", "client", columns, [str(k) for k in asked], points,
        "weight", list(marks.values()), "cells", about,
    )  # fmt: skip


def coded(code: str) -> str:
    """The code of a missing update, with its name."""
    return f"{code} {CODES[code].title}" if code in CODES else code


def partition(run: Run) -> Grid:
    """Client × class: how many images of each class each client holds."""
    held: list[list[int]] = run.classes.get("clients") or []
    shown = held[:MOST_ROWS]
    names = [str(n) for n in run.classes.get("classes", [])]
    names += [str(i) for i in range(len(names), max((len(row) for row in shown), default=0))]
    points = [
        Point(k, c, float(count), f"client {k}, {names[c]}: {count} {run.noun}")
        for k, row in enumerate(shown)
        for c, count in enumerate(row)
        if count
    ]
    sizes = [sum(row) for row in held]
    present = sum(sum(1 for n in row if n) for row in held) / max(len(held), 1)
    about = f"{len(held)} clients hold {min(sizes, default=0)} to {max(sizes, default=0)} {run.noun} each, "
    about += f"on average of {present:.1f} of the {len(names)} classes."
    if len(held) > len(shown):
        about += f" The first {len(shown)} clients are shown."
    return Grid(
        "partition", "Who holds what", "client", "class", [str(k) for k in range(len(shown))], names, points,
        run.noun, shape="bubbles", about=about,
    )  # fmt: skip


def norms(run: Run) -> Lines:
    """How far server and clients move in a round."""
    records = run.records
    xs = _rounds(records)
    clients = [[norm for u in r["updates"] if (norm := u.get("norm")) is not None] for r in records]
    series = [
        Series("server ‖σ − ω‖", xs, [r["norm_server"] for r in records]),
        Series("clients ‖ψ − ω‖, mean", xs, [sum(n) / len(n) if n else None for n in clients], 1),
        Series("model ‖ω′ − ω‖", xs, [r["norm_step"] for r in records], 2, "dashed"),
    ]
    shown = [s for s in series if any(s.y)]
    last = [f"{s.name} {amount(s.y[-1], 'number')}" for s in shown if s.y]
    about = f"Step lengths; in the last round {', '.join(last)}." if last else "No steps yet."
    return Lines("norms", "Step length by round", "round", "norm", shown, about=about)


def cosines(run: Run) -> Lines:
    """Whether each client's update points in the same direction as the server's."""
    xs, ys, notes = list[float](), list[float](), list[str]()
    for r in run.records:
        for u in r["updates"]:
            if (cosine := u.get("cosine")) is not None:
                xs.append(float(r["round"]))
                ys.append(cosine)
                notes.append(f"client {u['client']}")
    series = [Series("a client", xs, ys, 3, "points", notes=notes)]
    about = f"{len(ys)} updates"
    if ys:
        about += f"; cosines from {min(ys):.3f} to {max(ys):.3f}, mean {sum(ys) / len(ys):.3f}."
    title, levels = "Do clients move in the server's direction?", [Level("orthogonal", 0.0)]
    return Lines("cosines", title, "round", "cosine with the server's step", series, levels=levels, about=about)


def client_metrics(run: Run) -> list[Figure]:
    """Every number that clients report: the mean of each round, with the standard deviation among its clients."""
    told = [[u.get("metrics", {}) for u in r["updates"]] for r in run.records]
    names = [name for name in dict.fromkeys(n for r in told for own in r for n in own) if name not in CHARTED]
    figures: list[Figure] = []
    for name in names[:MOST_METRICS]:
        means = [Interval.known([own.get(name) for own in r]) for r in told]
        ys, spread = [m.mean if m else None for m in means], [m.sd if m else None for m in means]
        title, series = f"Clients report: {name}", Series("mean", _rounds(run.records), ys, spread=spread)
        ends = [m for m in means if m]
        about = f"In the last round {amount(ends[-1].mean, 'number')} on average." if ends else ""
        figures.append(Lines(f"client-{name.replace('/', '-')}", title, "round", name, [series], about=about))
    return figures


def traffic(run: Run) -> Lines:
    records = run.records
    series = [
        Series("to clients", _rounds(records), list(accumulate(r["bytes_down"] for r in records))),
        Series("from clients", _rounds(records), list(accumulate(r["bytes_up"] for r in records)), 1),
    ]
    ends = ", ".join(f"{amount(s.y[-1], 'bytes')} {s.name}" for s in series if s.y)
    return Lines("traffic", "Traffic so far", "round", "bytes", series, "bytes", about=f"In total {ends or 'nothing'}.")


def phases(run: Run) -> Bars:
    """Seconds of each round by phase; with many rounds, means over several."""
    records = run.records
    wide = -(-len(records) // MOST_COLUMNS) or 1
    groups = [records[i : i + wide] for i in range(0, len(records), wide)]
    names = list(dict.fromkeys(phase for r in records for phase in r["seconds"]))
    series = [(name, [sum(r["seconds"].get(name, 0.0) for r in g) / len(g) for g in groups]) for name in names]
    totals = {name: sum(r["seconds"].get(name, 0.0) for r in records) for name in names}
    about = "In total " + ", ".join(f"{name} {value:.1f} s" for name, value in totals.items()) + "." if totals else ""
    labels = [str(g[0]["round"]) for g in groups]
    return Bars("time", "Time by phase", "round", "seconds", labels, series, "seconds", stacked=True, about=about)
