"""The report: one HTML file about a run or a folder of runs that needs no network and fits into an e-mail."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedfew.config.files import dumps
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically, writing
from fedfew.core.text import duration, percent, size
from fedfew.interface.charts import Figure, Grid, to_csv
from fedfew.interface.charts.run_charts import figures_of
from fedfew.interface.charts.svg import WIDTH, chart_style, svg
from fedfew.interface.report import words
from fedfew.interface.report.comparison import tables
from fedfew.interface.report.standing import no_verdict, standing
from fedfew.runs.collection import SUFFIX, is_archive, read_all
from fedfew.runs.folder import CONFIG, siblings
from fedfew.runs.run import Run
from fedfew.runs.summary import newest
from fedfew.runtime.record import left_out
from fedfew.studies.bounds import bounds_of
from fedfew.studies.verdict import verdict

LIMIT = 2_000_000
MOST_CSV = 80_000
WIDE = 940
Links = Callable[[Figure], list[tuple[str, str]]]


@dataclass(frozen=True)
class Drawn:
    """A figure with its SVG, a second one for narrow screens if it is wide, and links to its data."""

    figure: Figure
    svg: Markup
    narrow: Markup | None
    links: list[tuple[str, str]]


def draw(figure: Figure, links: Links) -> Drawn:
    """Draw a figure; grids with many columns get the whole width."""
    if isinstance(figure, Grid) and len(figure.columns) > 32:
        wide = Markup(svg(figure, width=WIDE))
        return Drawn(figure, wide, Markup(svg(figure, width=WIDTH)), links(figure))
    return Drawn(figure, Markup(svg(figure)), None, links(figure))


def environment(*folders: str) -> Environment:
    """Templates of a package's folder with their filters; everything put into a page is escaped."""
    loaders = [PackageLoader(f"fedfew.interface.{name}", "templates") for name in (*folders, "report")]
    made = Environment(loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    filters: list[Callable[..., Any]] = [percent, size, duration, dumps, newest]
    filters += [words.marked, words.setup, words.origin, words.privacy, words.spark]
    made.filters |= {filter_.__name__: filter_ for filter_ in filters}
    made.globals["version"] = metadata.version("fedfew")
    return made


def write_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run, folder or archive, by default to report/index.html in it, or NAME.html beside it."""
    source = Path(path)
    sibling = source.with_name(source.name.removesuffix(SUFFIX) + ".html")
    target = Path(out) if out else sibling if is_archive(source) else source / "report" / "index.html"
    if target.suffix not in (".html", ".htm"):
        target = target / "index.html"
    content = report(source, inline_csv).encode()
    if len(content) > LIMIT:
        content = report(source, lambda figure: []).encode()
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, content)
    return target


def report(source: Path, links: Links) -> str:
    """The report's HTML."""
    if (source / CONFIG).is_file():
        run = Run.open(source)
        if run.fault:
            raise run.fault
        others = (Run.open(path) for path in siblings(source))
        return page("run_report.html", **about_run(run, list(others), links), plural=False)
    runs, faults = read_all(source)
    if not runs:
        fault = "contains no readable run" if source.exists() else "does not exist"
        raise faults[0] if faults else FedfewError("E302", str(source), fault)
    return page(
        "folder_report.html",
        title=f"Runs in {source.resolve().name}",
        runs=runs,
        faults=faults,
        draw=draw,
        links=links,
        tables=tables(runs),
        plural=True,
    )


def inline_csv(figure: Figure) -> list[tuple[str, str]]:
    """The numbers inside the file, unless they would make it too large; rounds.jsonl has them anyway."""
    content = to_csv(figure).encode()
    return [] if len(content) > MOST_CSV else [("csv", "data:text/csv;base64," + base64.b64encode(content).decode())]


def about_run(run: Run, others: Sequence[Run], links: Links) -> dict[str, Any]:
    """The content of a run's report and page, with its bounds among ``others``."""
    bounds = bounds_of(run, others)
    return {
        "title": f"{run.title} on {run.dataset}",
        "run": run,
        "bounds": bounds,
        "verdict": judged.sentence if (judged := verdict(run, bounds)) else no_verdict(run, bounds),
        "standing": standing(run, bounds),
        "alarms": run.alarms,
        "lost": sum(len(left_out(r)) for r in run.records),
        "skipped": sum(r["skipped"] for r in run.records),
        "events": words.events_of(run),
        "charts": [draw(figure, links) for figure in figures_of(run, bounds)],
    }


def page(template: str, *folders: str, **content: Any) -> str:
    """A page of its own from a template, in the style of reports."""
    style = (resources.files("fedfew.interface.report") / "templates" / "style.css").read_text("utf-8")
    made, written = environment(*folders).get_template(template), f"{datetime.now():%Y-%m-%d %H:%M}"
    return made.render(**content, style=Markup(f"{chart_style()}\n{style}"), written=written)
