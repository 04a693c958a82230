"""fedfew reproduce: the paper's figures by command, each with a table of the paper's claims and our results."""

import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedfew.build.parts import federation_of
from fedfew.config.scale import scaled
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.data import heterogeneity
from fedfew.interface import options
from fedfew.interface.batch import Tally, run_all
from fedfew.interface.charts.printed import save
from fedfew.interface.console import complain, err, out, print_json
from fedfew.interface.options import Anyway, Jobs, Json, Scale, Set, Until
from fedfew.interface.paper_figures import bubbles, draw
from fedfew.studies.claims import (
    against_server_only,
    gain_cell,
    gain_sentence,
    partitions,
    verdicts,
    without_difference,
)
from fedfew.studies.claims_measures import Verdict, columns
from fedfew.studies.reproduce import FIG3, FIGURES, PAPER, TITLES, Plan, arms_of, cells, chosen, folder_of, in_order
from fedfew.studies.reproduce_markdown import better_server, overview, put, relative, section
from fedfew.studies.reproduce_results import (
    RUNS,
    Results,
    as_csv,
    curves_csv,
    known_plans,
    remember,
    results,
    table_csv,
)
from fedfew.studies.sweep_jobs import check_jobs

WHAT = "fig3|fig4|fig5|fig6a|fig6b|extra|ablation|recipe|groupnorm|all|few-labels|report"


def reproduce(
    figure: Annotated[str, typer.Argument(metavar=WHAT, help="A figure, all of them, or the page about them.")],
    scale: Scale = None,
    preset: Annotated[
        str, typer.Option(metavar="PRESET|CONFIG.toml", help="Config that the runs start from.")
    ] = "paper-tuned",
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow it.")] = 0,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the runs, shared by all figures.")
    ] = None,
    jobs: Jobs = 0,
    until: Until = 0,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Run only arms whose title begins with this, e.g. 'non-IID FedMix', in the order given.",
        ),
    ] = None,
    figures_only: Annotated[bool, typer.Option("--figures-only", help="Run nothing, draw existing runs.")] = False,
    page: Annotated[Path, typer.Option(metavar="FILE.md", help="report: the page to write.")] = Path(
        "docs/understand/results.md"
    ),
    anyway: Anyway = False,
    json: Json = False,
) -> None:
    """Run what a figure of the paper needs (finished runs are kept), draw it, and judge the paper's claims."""
    plan = Plan(preset, scale, seeds, options.overrides(set_), first_seed)
    folder = out or folder_of(plan)
    if figure == "report":
        return _report(folder, page, json)
    figures = [FIG3, *PAPER] if figure == "all" else [figure]
    for name in figures:
        _ = arms_of(name) if name != FIG3 else None  # refuse an unknown name before anything runs
    if note := scaled(preset, scale, plan.overrides)[1]:
        err.print(note, markup=False, soft_wrap=True)
    command = _command()
    tally = None if figures_only else _run(
        plan, figures, folder, command, jobs=jobs, until=until, anyway=anyway, arms=arm or []
    )  # fmt: skip
    if not figures_only:
        remember(folder, figures, plan, command)
    shown = {name: _show(plan, name, folder, quiet=json) for name in figures}
    if json:
        runs = tally.as_json() if tally else None
        result = shown[figures[0]] if len(figures) == 1 else {"figures": shown}
        print_json({"folder": str(folder), "runs": runs} | result)
    return None


def _command() -> str:
    """The command as typed, so that it can be typed again."""
    return shlex.join(["fedfew", *(word for word in sys.argv[1:] if word != "--json")])


def _run(
    plan: Plan, figures: list[str], folder: Path, command: str, *, jobs: int, until: int, anyway: bool, arms: list[str]
) -> Tally:
    if jobs:
        check_jobs(jobs)
    made_of_runs = [name for name in FIGURES if name in figures]
    planned = cells(plan, made_of_runs)
    wanted = in_order(chosen(planned, made_of_runs, arms) if arms else planned)
    remember(folder, figures, plan, command)  # before the runs, so that the page can be made meanwhile
    if not wanted:
        return Tally()
    return run_all(wanted, folder / RUNS, jobs=jobs, until=until, anyway=anyway, command=command)


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
