"""``python -m paper``: run what a figure needs, draw it and judge the paper's claims; or write the results page."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from fedfew.config.files import parse_set
from fedfew.config.tables import scaled
from fedfew.core.errors import FedfewError
from fedfew.interface.batch import BatchResult, run_all
from fedfew.interface.console import complain, err, out, print_json
from fedfew.studies.parallel import check_jobs
from paper.arms import FIG3, PAPER, TITLES
from paper.figure import Figure, make, request_partitions
from paper.measures import Verdict, columns
from paper.page import report
from paper.plan import Plan, cells, chosen, folder_of, in_order
from paper.study import Request, Study, keep, published

PAGE, RECORDS = Path("docs/understand/results.md"), Path("paper/records")


def main(words: Sequence[str] | None = None) -> None:
    """Run one command; an error is a line with a code, and exit status 2."""
    options = _parser().parse_args(words)
    try:
        if options.figure == "report":
            _report(options)
        elif options.figure == "keep":
            _keep(options)
        else:
            typed = [word for word in (sys.argv[1:] if words is None else words) if word != "--json"]
            _figures(options, shlex.join(["python", "-m", "paper", *typed]))
    except FedfewError as fault:
        complain(fault)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m paper", description=__doc__)
    add = parser.add_argument
    others = f"all: all of the paper's; report: the results page; keep: the records of --out into {RECORDS}"
    add("figure", metavar="FIGURE", help=f"{', '.join(TITLES)}; {others}")
    add("--scale", metavar="full|laptop", help="the paper's size, or width 16 and 11,000 images")
    add("--preset", default="paper-tuned", help="config that the runs start from (default: paper-tuned)")
    add("--seeds", type=int, default=1, metavar="N", help="repeat with this many seeds")
    add("--first-seed", type=int, default=0, metavar="N", help="the first seed; the others follow it")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the config")
    add("--out", type=Path, metavar="DIR", help="folder of the runs, shared by all figures; report: or an archive")
    add("--jobs", type=int, default=0, metavar="N", help="runs at a time; 0: one at a time on all cores")
    add("--until", type=int, default=0, metavar="ROUND", help="pause every run after this round")
    add("--arm", action="append", default=[], metavar="TEXT", help="run only arms whose title begins with this")
    add("--figures-only", action="store_true", help="run nothing, draw existing runs")
    add("--page", type=Path, default=PAGE, metavar="FILE.md", help=f"report: the page to write (default: {PAGE})")
    add("--anyway", action="store_true", help="continue even if torch or the machine has changed since the start")
    add("--json", action="store_true", help="print the result as JSON on the last line")
    return parser


def _report(options: argparse.Namespace) -> None:
    """The page from one study, or from all that are published."""
    written = report([Study(options.out)] if options.out else published(RECORDS), options.page)
    if options.json:
        print_json({"page": str(options.page), "figures": written})
    else:
        out.print(f"{options.page}: {', '.join(written)}", soft_wrap=True)


def _keep(options: argparse.Namespace) -> None:
    """A study's records as an archive."""
    if not options.out:
        raise FedfewError("E103", "--out", "is missing", "Give the folder of the study whose records are to be kept")
    path = keep(Study(options.out), RECORDS)
    out.print(f"{path}: {path.stat().st_size / 1000:.0f} kB", soft_wrap=True)


def _figures(options: argparse.Namespace, command: str) -> None:
    """Make the runs of a figure, or of all of the paper's, and show the figures."""
    plan = Plan(options.preset, options.scale, options.seeds, dict(map(parse_set, options.set)), options.first_seed)
    study = Study(options.out or folder_of(plan))
    figures = [FIG3, *PAPER] if options.figure == "all" else [options.figure]
    planned = cells(plan, [name for name in (*PAPER, *figures) if name in figures and name != FIG3])
    if note := scaled(plan.preset, plan.scale, plan.overrides)[1]:
        err.print(note, markup=False, soft_wrap=True)
    wanted = in_order(chosen(planned, options.arm) if options.arm else planned)
    if options.jobs:
        check_jobs(options.jobs)

    def requests() -> dict[str, Request]:
        own = {name: Request(command, plan.scale, plan.seeds, study.names(runs)) for name, runs in planned.items()}
        return own | ({FIG3: request_partitions(plan, command)} if FIG3 in figures else {})

    tally = BatchResult()
    if not options.figures_only:
        study.remember(requests())  # before the runs, so that the page can be made meanwhile
        how = {"jobs": options.jobs, "until": options.until, "anyway": options.anyway}
        tally = run_all(wanted, study.path, **how, command=command) if wanted else tally
    drawn = {name: make(name, request, study) for name, request in requests().items()}
    files = {name: drawn[name].save(study.path / "figures") for name in figures}
    if options.json:
        shown = [drawn[name].as_json() | {"files": [str(path) for path in files[name]]} for name in figures]
        about = {"folder": str(study.path), "runs": tally.as_json()}
        print_json(about | (shown[0] if len(shown) == 1 else {"figures": shown}))
        return
    for name in figures:
        _show(drawn[name], files[name])


def _show(figure: Figure, files: Sequence[Path]) -> None:
    table = Table(title=figure.title, show_lines=True)
    for column in columns(figure.verdicts):
        table.add_column(column, overflow="fold")
    for verdict in figure.verdicts:
        claim = f"{verdict.claim}\n[dim]{verdict.source}[/]"
        table.add_row(claim, verdict.got, f"{_coloured(verdict)}\n{verdict.words}")
    out.print(table)
    for sentence in figure.sentences:
        out.print(f"- {sentence}", markup=False, soft_wrap=True)
    out.print("files: " + ", ".join(map(str, files)), soft_wrap=True)


def _coloured(verdict: Verdict) -> str:
    colour = {"yes": "green", "no": "red"}.get(verdict.agrees, "yellow")
    return f"[{colour}]{'so far: ' if verdict.partial else ''}{verdict.agrees}[/]"


if __name__ == "__main__":
    main()
