"""Charts of the final model's quality: confusion matrix, precision and recall, calibration, and the sites' classes."""

from fedfew.interface.charts import Bars, Figure, Grid, Lines, Point, Series
from fedfew.interface.charts.scale import amount
from fedfew.runs.run import Run

MOST_SITES = 60


def evaluation_figures(run: Run) -> list[Figure]:
    """The charts of a finished run with test images; a run without test images has none."""
    if not run.evaluation:
        return []
    sites = [site_mixes(run)] if any(row.get("mix") for row in run.evaluation["sites"]) else []
    clients = [client_accuracies(run)] if run.evaluation.get("clients") else []
    return [confusion(run), by_class(run), calibration(run), *sites, *clients]


def confusion(run: Run) -> Grid:
    """True class × predicted class, as shares of the true class."""
    counts = run.evaluation["confusion"]
    names = [str(row["class"]) for row in run.evaluation["classes"]]
    cells = [(n, true, predicted) for true, row in enumerate(counts) for predicted, n in enumerate(row) if n]
    points = [
        Point(
            predicted, true, n / sum(counts[true]), f"{n} {run.noun} of {names[true]} predicted as {names[predicted]}"
        )
        for n, true, predicted in cells
    ]
    wrong = [cell for cell in cells if cell[1] != cell[2]]
    about = f"{sum(map(sum, counts)):,} test {run.noun}."
    if wrong:
        n, true, predicted = max(wrong)
        about += f" Most often confused: {names[true]} taken for {names[predicted]}, {n} {run.noun}."
    return Grid(
        "confusion", "Confusion matrix", "predicted class", "true class", names, names, points,
        "share of the true class", about=about,
    )  # fmt: skip


def by_class(run: Run) -> Bars:
    rows = run.evaluation["classes"]
    series = [(key, [row[key] or 0.0 for row in rows]) for key in ("precision", "recall")]
    known = [(row["recall"], row["class"]) for row in rows if row["recall"] is not None]
    about = f"Lowest recall: {min(known)[1]}, {amount(min(known)[0], 'percent')}." if known else ""
    names = [str(row["class"]) for row in rows]
    return Bars("by-class", "Precision and recall", "class", "share", names, series, "percent", about=about)


def calibration(run: Run) -> Lines:
    """Accuracy against confidence; on the diagonal the model is well calibrated."""
    bins = run.evaluation["calibration"]
    sure = [float(b["confidence"]) for b in bins]
    series = [
        Series("the model", sure, [b["accuracy"] for b in bins], notes=[f"{b['images']:.0f} {run.noun}" for b in bins]),
        Series("perfectly calibrated", [0.0, 1.0], [0.0, 1.0], 1, "dashed"),
    ]
    about = f"Expected calibration error {amount(run.evaluation['ece'], 'percent')}."
    return Lines("calibration", "Calibration", "mean confidence", "share correct", series, "percent", about=about)


def client_accuracies(run: Run) -> Lines:
    """The final model's accuracy on each client's images, the worst client first."""
    known = sorted((value, k) for k, value in enumerate(run.evaluation["clients"]) if value is not None)
    notes = [f"client {k}" for _, k in known]
    series = Series("a client", [i + 1.0 for i in range(len(known))], [value for value, _ in known], notes=notes)
    about = f"Worst tenth {amount(run.evaluation['worst_clients'], 'percent')} on average, "
    about += f"Gini {run.evaluation['gini_clients']:.3f}."
    title, axis = "Accuracy by client", "clients, worst first"
    return Lines("client-accuracy", title, axis, "accuracy", [series], "percent", about=about)


def site_mixes(run: Run) -> Grid:
    """Site × class: each site's class mix as the model estimates it from the site's images."""
    rows = [row for row in run.evaluation["sites"] if row.get("mix")][:MOST_SITES]
    classes = [str(row["class"]) for row in run.evaluation["classes"]]
    points = [
        Point(c, k, share, f"{row['site']}: {amount(share, 'percent')} {classes[c]}")
        for k, row in enumerate(rows)
        for c, share in enumerate(row["mix"])
        if share
    ]
    most = [f"{row['site']} {classes[max(range(len(classes)), key=row['mix'].__getitem__)]}" for row in rows[:5]]
    about = (
        f"Estimated from {sum(row['images'] for row in rows):,} unlabeled {run.noun}. Most frequent: {', '.join(most)}."
    )
    names = [str(row["site"]) for row in rows]
    return Grid(
        "site-mix", "Estimated class mix of the sites", "class", "site", classes, names, points, "share", about=about
    )
