"""``python -m paper``: run what a figure needs, draw it and judge the paper's claims; or write the results page."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from fedfew.build.parts import federation_of
from fedfew.config.files import parse_set
from fedfew.config.scale import scaled
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.data.partitions import heterogeneity
from fedfew.interface.batch import Tally, run_all
from fedfew.interface.charts.comparison import bubbles
from fedfew.interface.charts.printed import save
from fedfew.interface.console import complain, err, out, print_json
from fedfew.studies.compare_tables import as_csv
from fedfew.studies.sweep_jobs import check_jobs
from paper.arms import FIG3, FIGURES, PAPER, TITLES, Plan, arms_of, cells, chosen, folder_of, in_order
from paper.claims import against_server_only, gain_cell, gain_sentence, partitions, verdicts, without_difference
from paper.drawing import draw
from paper.measures import Verdict, columns
from paper.page import better_server, overview, put, relative, section
from paper.results import RUNS, Results, curves_csv, known_plans, remember, results, table_csv

PAGE = Path("docs/understand/results.md")


def main(words: Sequence[str] | None = None) -> None:
    """Run one command; an error is a line with a code, and exit status 2."""
    given = _parser().parse_args(words)
    command = shlex.join(["python", "-m", "paper", *(word for word in words or sys.argv[1:] if word != "--json")])
    try:
        plan = Plan(given.preset, given.scale, given.seeds, dict(map(parse_set, given.set)), given.first_seed)
        folder = given.out or folder_of(plan)
        if given.figure == "report":
            _report(folder, given.page, given.json)
        else:
            _figures(plan, folder, given, command)
    except FedfewError as fault:
        complain(fault)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m paper", description=__doc__)
    add = parser.add_argument
    add("figure", metavar="FIGURE", help=f"{', '.join(TITLES)}, all of the paper's (all), or the results page (report)")
    add("--scale", metavar="full|laptop", help="the paper's size, or width 16 and 11,000 images")
    add("--preset", default="paper-tuned", help="config that the runs start from (default: paper-tuned)")
    add("--seeds", type=int, default=1, metavar="N", help="repeat with this many seeds")
    add("--first-seed", type=int, default=0, metavar="N", help="the first seed; the others follow it")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the config")
    add("--out", type=Path, metavar="DIR", help="folder of the runs, shared by all figures")
    add("--jobs", type=int, default=0, metavar="N", help="runs at a time; 0: one at a time on all cores")
    add("--until", type=int, default=0, metavar="ROUND", help="pause every run after this round")
    add("--arm", action="append", default=[], metavar="TEXT", help="only arms whose title begins with this")
    add("--figures-only", action="store_true", help="run nothing, draw existing runs")
    add("--page", type=Path, default=PAGE, metavar="FILE.md", help=f"report: the page to write (default: {PAGE})")
    add("--anyway", action="store_true", help="continue even if torch or the machine has changed since the start")
    add("--json", action="store_true", help="print the result as JSON on the last line")
    return parser


def _figures(plan: Plan, folder: Path, given: argparse.Namespace, command: str) -> None:
    figures = [FIG3, *PAPER] if given.figure == "all" else [given.figure]
    for name in figures:
        _ = arms_of(name) if name != FIG3 else None  # refuse an unknown name before anything runs
    if note := scaled(plan.preset, plan.scale, plan.overrides)[1]:
        err.print(note, markup=False, soft_wrap=True)
    tally = None
    if not given.figures_only:
        tally = _run(plan, figures, folder, given, command)
        remember(folder, figures, plan, command)
    shown = {name: _show(plan, name, folder, quiet=given.json) for name in figures}
    if given.json:
        runs = tally.as_json() if tally else None
        result = shown[figures[0]] if len(figures) == 1 else {"figures": shown}
        print_json({"folder": str(folder), "runs": runs} | result)


def _run(plan: Plan, figures: list[str], folder: Path, given: argparse.Namespace, command: str) -> Tally:
    if given.jobs:
        check_jobs(given.jobs)
    made_of_runs = [name for name in FIGURES if name in figures]
    planned = cells(plan, made_of_runs)
    wanted = in_order(chosen(planned, made_of_runs, given.arm) if given.arm else planned)
    remember(folder, figures, plan, command)  # before the runs, so that the page can be made meanwhile
    if not wanted:
        return Tally()
    return run_all(wanted, folder / RUNS, jobs=given.jobs, until=given.until, anyway=given.anyway, command=command)


def _show(plan: Plan, name: str, folder: Path, *, quiet: bool) -> dict[str, Any]:
    """Draw a figure, write its tables, and print the claims unless JSON was requested."""
    made = make(plan, name, folder)
    table = Table(title=made["title"], show_lines=True)
    for column in columns(made["verdicts"]):
        table.add_column(column, overflow="fold")
    for v in made["verdicts"]:
        table.add_row(f"{v.claim}\n[dim]{v.source}[/]", v.got, f"{_coloured(v)}\n{v.words}")
    if not quiet:
        out.print(table)
        for sentence in made["sentences"]:
            out.print(f"- {sentence}", markup=False, soft_wrap=True)
        out.print("files: " + ", ".join(map(str, made["files"])), soft_wrap=True)
    result: dict[str, Any] = {
        "figure": name,
        "claims": [asdict(v) for v in made["verdicts"]],
        "arms": [arm.row() for arm in made["found"].values()],
        "against_server_only": made["sentences"],
        "files": [str(path) for path in made["files"]],
    }
    result |= made["more"]
    return result


def _coloured(verdict: Verdict) -> str:
    colour = {"yes": "green", "no": "red"}.get(verdict.agrees, "yellow")
    return f"[{colour}]{'so far: ' if verdict.partial else ''}{verdict.agrees}[/]"


def make(plan: Plan, name: str, folder: Path) -> dict[str, Any]:
    """A figure's files and verdicts, from the current runs in the folder."""
    if name == FIG3:
        return _make_partitions(plan, folder)
    found = results(plan, name, folder)
    gains = against_server_only(found)
    apart = [f"{' '.join(filter(None, key))}: {why}." for key, why in without_difference(found).items()]
    files = save(draw(name, found), folder / "figures" / name, ("png", "svg", "pdf"))
    for suffix, content in (("", curves_csv(found)), ("-table", table_csv(found))):
        files.append(folder / "figures" / f"{name}{suffix}.csv")
        write_atomically(files[-1], content)
    return {
        "title": TITLES[name], "found": found, "verdicts": verdicts(name, found),
        "sentences": [gain_sentence(key, m) for key, m in gains.items()] + apart, "gains": gains, "files": files,
        "more": {},
    }  # fmt: skip


def _make_partitions(plan: Plan, folder: Path) -> dict[str, Any]:
    """Figure 3: no run is needed, the partitions are recreated from their seed."""
    histograms, hashes = {}, {}
    classes: tuple[str, ...] = ()
    for mu in (0.1, 1.0, 10.0):
        own = {**plan.overrides, "partition.kind": "dirichlet", "partition.mu": mu}
        federation = federation_of(load(plan.preset, scaled(plan.preset, plan.scale, own)[0]))
        classes = federation.classes
        histograms[mu] = federation.partition.histogram(federation.truth.numpy(), len(classes))
        hashes[f"{mu:g}"] = federation.partition.hash
    drawn = bubbles({f"μ = {mu:g}": h for mu, h in histograms.items()}, classes)
    files = save(drawn, folder / "figures" / "fig3", ("png", "svg", "pdf"))
    rows = [
        {"mu": f"{mu:g}", "client": client, "class": classes[kind], "images": int(count)}
        for mu, histogram in histograms.items()
        for client, row in enumerate(histogram)
        for kind, count in enumerate(row)
    ]
    files.append(folder / "figures" / "fig3.csv")
    write_atomically(files[-1], as_csv(rows, ["mu", "client", "class", "images"]))
    more = {"R": {f"{mu:g}": round(heterogeneity(h), 4) for mu, h in histograms.items()}, "hash": hashes}
    return {
        "title": TITLES["fig3"], "found": {}, "verdicts": partitions(histograms), "sentences": [],
        "gains": {}, "files": files, "more": more,
    }  # fmt: skip


def _report(folder: Path, page: Path, json: bool) -> None:
    """Write the section of every figure requested so far; safe while runs are in progress.

    A page holds the figures of two reproductions: those of ``--scale full`` have sections and files of their own.
    """
    plans = known_plans(folder)
    beside = page.parent / page.stem
    beside.mkdir(parents=True, exist_ok=True)
    sections: dict[str, str] = {}
    reached: dict[str, tuple[Results, list[Verdict]]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for name in (name for name in TITLES if name in plans):
        try:
            figures[name] = make(plans[name][0], name, folder)
        except FedfewError as fault:
            if name != FIG3:
                raise
            complain(fault)  # its data set is not here: the section that the page has stays
    runs = [run for made in figures.values() for arm in made["found"].values() for run in arm.runs]
    for name, made in figures.items():
        plan, command = plans[name]
        own, title = (
            (f"{name}-full", f"{TITLES[name]}, at full scale") if plan.scale == "full" else (name, TITLES[name])
        )
        reached |= {name: (made["found"], made["verdicts"])} if own == name else {}
        if all(v.agrees == "no runs yet" for v in made["verdicts"]):
            continue  # nothing to say yet but that in the overview
        files = [Path(shutil.copyfile(path, beside / path.name.replace(name, own, 1))) for path in made["files"]]
        links = [relative(path, page) for path in files if path.suffix == ".csv"]
        image = relative(next(path for path in files if path.suffix == ".svg"), page)
        gains = {key: gain_cell(m) for key, m in made["gains"].items()} | without_difference(made["found"])
        note = better_server(made["found"], runs)
        sections[own] = section(title, command, made["found"], made["verdicts"], gains, image, links, note)
    put(page, ({"paper": overview(reached)} if PAPER.keys() & reached.keys() else {}) | sections)
    if json:
        print_json({"page": str(page), "figures": list(sections)})
    else:
        out.print(f"{page}: {', '.join(sections)}", soft_wrap=True)


if __name__ == "__main__":
    main()
