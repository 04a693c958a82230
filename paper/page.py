"""The results page: a Markdown section for each figure, made from the runs and replaced in place."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedfew.core.storage import write_atomically
from fedfew.runs.run import Run
from fedfew.studies.bounds import BASELINE, other_recipe, scenario
from paper import few_page
from paper.arms import FIG3, PAPER, TITLES
from paper.few import FEW, SITES
from paper.figure import Figure, make
from paper.measures import Verdict, columns, gain_cell, smaller
from paper.plan import ArmKey
from paper.results import Results
from paper.study import Study

RULE = (
    "Accuracy is that of the model after the last round, on the test images; over seeds, mean ± standard deviation. "
    "Differences are paired by seed; a standard error is that over seeds, and at least that of drawing the test "
    "images, and a difference counts as significant where its 95 % interval by Student's t leaves out zero. "
    "An accuracy agrees with the paper's if it is no further off than two standard errors of both."
)

BETTER = 0.01
"""A recipe that is this much better for the labels alone is worth a note."""
UNFINISHED = 4
"""Up to this many unfinished runs are named; more are counted."""


def report(studies: Iterable[Study], page: Path) -> list[str]:
    """Write a section for every figure requested so far, and the figures' files beside the page; returns their names.

    It is safe while runs are in progress. Sections of other figures stay as they are.
    """
    sections: dict[str, str] = {}
    for study in studies:
        requests = study.requests()
        figures = [make(name, requests[name], study) for name in TITLES if name in requests]
        runs = [run for figure in figures for arm in figure.results.values() for run in arm.runs]
        if any(figure.own_name in PAPER for figure in figures):
            sections["paper"] = overview({figure.own_name: figure for figure in figures})
        of_study = {figure.name: figure for figure in figures if figure.name in (FEW, SITES)}
        if of_study:
            goals = [verdict for figure in of_study.values() for verdict in figure.verdicts]
            sections["answer"] = few_page.answer({name: f.results for name, f in of_study.items()}, goals)
        for figure in figures:
            if any(verdict.agrees != "no runs yet" for verdict in figure.verdicts):
                files = figure.save(page.parent / page.stem)
                sections[figure.own_name] = section(figure, runs, [relative(path, page) for path in files])
    put(page, sections)
    return [name for name in sections if name not in ("paper", "answer")]


def section(figure: Figure, runs: Iterable[Run], files: Sequence[str]) -> str:
    """The section of one figure; ``runs`` are those of all figures of the study."""
    arms, title = figure.results, figure.title
    of_study = figure.name in (FEW, SITES)
    own = {run.path: run for arm in arms.values() for run in arm.runs}
    parts = [f"## {title}", f"`{figure.request.command}`", *_facts(list(own.values()), arms)]
    parts += [f"![{title}]({image})" for image in files if image.endswith(".svg")]
    if of_study:
        parts += few_page.tables(figure.name, arms)
    elif arms:
        gains = {key: gain_cell(gain) for key, gain in figure.gains.items()}
        note = better_server(arms, runs)
        parts += [_arms_table(arms, gains), *([note] if note else [])]
    judged = [verdict for verdict in figure.verdicts if verdict.agrees != "no runs yet"]
    parts += [] if of_study else [claims_table(judged)]
    if waiting := len(figure.verdicts) - len(judged):
        parts.append(f"{waiting} more claim{'s' * (waiting > 1)} cannot be judged without the missing runs.")
    tables = [f"[{Path(name).name}]({name})" for name in files if name.endswith(".csv")]
    parts.append(f"Numbers: {', '.join(tables)}.")
    return "\n\n".join(parts) + "\n"


def better_server(arms: Results, runs: Iterable[Run]) -> str:
    """A note if the labels alone did better in another figure, with the same seeds and another recipe."""

    def split(run: Run) -> tuple[str, tuple[int, int]]:
        return scenario(run, BASELINE), run.seeds

    def alone(some: Iterable[Run]) -> list[Run]:
        return [run for run in some if run.method == BASELINE and run.finished]

    own = {split(run): run for run in alone(run for arm in arms.values() for run in arm.runs)}
    pairs: dict[tuple[str, ...], dict[Any, tuple[Run, Run]]] = {}
    for run in alone(runs):
        here = own.get(split(run))
        if here and (keys := other_recipe(here, run)):
            recipe = tuple(f"`{key} = {run.flat.get(key)}`" for key in keys)
            pairs.setdefault(recipe, {})[split(run)] = here, run
    notes = []
    for recipe, both in pairs.items():
        mine, best = (fmean(pair[i].accuracy() or 0.0 for pair in both.values()) for i in (0, 1))
        if best - mine > BETTER:
            seeds = f"{len(both)} seed{'s' * (len(both) > 1)}"
            notes.append(
                f"**Not the best server:** with {', '.join(recipe)} the labels alone reach {100 * best:.1f} % "
                f"where server-only training has {100 * mine:.1f} % here ({seeds})."
            )
    return " ".join(notes)


def overview(figures: Mapping[str, Figure]) -> str:
    """How far each figure of the paper is: finished arms, seeds, the round of the comparison, and its claims."""
    rows = []
    for name in [name for name in TITLES if name in (FIG3, *PAPER)]:
        figure = figures.get(name)
        reached = _reached(figure.results if figure else {}, name == FIG3)
        rows.append([TITLES[name], *reached, _counted(figure.verdicts if figure else ())])
    head = ["figure", "finished arms", "seeds", "compared at round", "verdicts"]
    return "## How far the figures are\n\n" + _markdown(head, rows) + "\n"


def _reached(arms: Results, needs_none: bool) -> list[str]:
    begun = [arm for arm in arms.values() if arm.runs]
    if not begun:
        return ["needs no run" if needs_none else "not run yet", "", ""]
    done, of = min(arm.row()["rounds"] for arm in begun), max(arm.row()["of"] for arm in begun)
    finished = f"{sum(all(run.finished for run in arm.runs) for arm in begun)} of {len(arms)}"
    seeds, wanted = min(len(arm.runs) for arm in begun), max(arm.wanted for arm in begun)
    return [
        finished,
        str(seeds) if seeds == wanted else f"{seeds} of {wanted}",
        str(of) if done == of else f"{done} of {of}",
    ]


def _counted(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in numbers; ``so far`` if runs are missing."""
    counts = Counter(verdict.agrees for verdict in verdicts)
    words = ", ".join(f"{count} {agrees}" for agrees, count in counts.items()) or "–"
    return f"so far: {words}" if any(verdict.partial for verdict in verdicts) else words


def _facts(runs: Sequence[Run], arms: Results) -> list[str]:
    if not runs:
        return ["No run has finished a round yet."] if arms else []
    environments = [run.environment for run in runs]
    machines = {f"{e.get('fingerprint', {}).get('processor', '?')}, {e.get('cores', '?')} cores" for e in environments}
    versions = {f"torch {e.get('fingerprint', {}).get('torch', '?')}" for e in environments}
    systems = {f"Python {e.get('python', '?')}" for e in environments}
    seeds = sorted({run.seed for run in runs})
    minutes = sum(run.seconds for run in runs) / 60
    fleets = {run.document["fleet"]["kind"] for run in runs}
    setting = "" if any(arm.arm.preset for arm in arms.values()) else f" {_setting(runs[0].document)}"
    lines = [
        f"Machine: {'; '.join(sorted(machines))}. {'; '.join(sorted(versions | systems))}. "
        f"{len(runs)} runs, seeds {', '.join(map(str, seeds))}, {minutes:.0f} minutes of rounds in all "
        f"({'/'.join(sorted(fleets))} fleet).{setting}"
    ]
    short = [run for run in runs if not run.finished]
    if short:
        counts = Counter((run.done, run.planned) for run in short)
        reached = ", ".join(f"{run.path.name} at round {run.done} of {run.planned}" for run in short)
        if len(short) > UNFINISHED:
            reached = ", ".join(f"{n} at round {rounds} of {of}" for (rounds, of), n in sorted(counts.items()))
        lines.append(f"**Partial:** {len(short)} of these runs had not finished when this was written: {reached}.")
    if at := max((arm.at or 0 for arm in arms.values()), default=0):
        lines.append(f"All runs are compared as they were after round {at}, which all have reached.")
    for words, names in (
        ("not run yet:", [arm.arm.title for arm in arms.values() if not arm.runs]),
        ("fewer seeds than planned for", [arm.arm.title for arm in arms.values() if 0 < len(arm.runs) < arm.wanted]),
    ):
        lines += [f"**Partial:** {words} {'; '.join(names)}."] if names else []
    return lines


def _setting(config: dict[str, Any]) -> str:
    model, data = config["model"], config["dataset"]
    width = f" of width {model['width']}" if "width" in model else ""
    unlabeled = f"{data['unlabeled']:,}" if data["unlabeled"] else "all other"
    kind = config["engine"]["autocast"]
    passes = "" if kind == "off" else f", forward passes in {kind}"
    less = smaller(config)
    warning = f" The paper has {', '.join(less)}: compare differences rather than levels." if less else ""
    return (
        f"{model['name']}{width} on {data['name']}, {unlabeled} unlabeled images at {config['clients']} clients, "
        f"{config['rounds']} rounds{passes}.{warning}"
    )


def _arms_table(arms: Results, gains: Mapping[ArmKey, str]) -> str:
    panels = any(panel for panel, _ in arms)
    head = ["arm", "accuracy", "against server-only", "best by validation", "seeds", "rounds", "minutes"]
    head = ["setting", *head] if panels else head
    rows = []
    for arm in arms.values():
        row = arm.row()
        if row["accuracy"] is not None:
            sd = f" ± {100 * row['sd']:.1f}" if row["sd"] is not None else ""
            best = f"{100 * row['best_by_validation']:.1f} %" if row["best_by_validation"] is not None else "–"
            reached = str(row["of"]) if row["rounds"] == row["of"] else f"**{row['rounds']} of {row['of']}**"
            accuracy = f"{100 * row['accuracy']:.1f}{sd} %"
            seeds, minutes = str(row["seeds"]), f"{row['minutes']:.0f}"
            cells = [arm.arm.label, accuracy, gains.get(arm.arm.key, ""), best, seeds, reached, minutes]
            rows.append([*([arm.arm.panel] if panels else []), *cells])
    return _markdown(head, rows)


def claims_table(verdicts: Sequence[Verdict]) -> str:
    """The claims, what we got, and whether they hold."""
    rows = []
    for v in verdicts:
        agrees = f"so far: {v.agrees}" if v.partial and v.agrees in ("yes", "no", "undecided") else v.agrees
        words = f" {v.words}." if v.words else ""
        rows.append(
            [f"{v.claim} ({v.source})" if v.source else v.claim, v.got, f"**{agrees}**.{words}".replace("..", ".")]
        )
    return _markdown(columns(verdicts), rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def put(page: Path, sections: dict[str, str]) -> None:
    """Write sections into a page between their markers; the rest of the page stays, new sections are added."""
    text = page.read_text("utf-8") if page.is_file() else f"# Results\n\n{RULE}\n"
    for name, content in sections.items():
        block = f"<!-- begin {name} -->\n{content}<!-- end {name} -->"
        mark = re.compile(rf"<!-- begin {re.escape(name)} -->.*?<!-- end {re.escape(name)} -->", re.DOTALL)
        text = mark.sub(lambda _, block=block: block, text) if mark.search(text) else f"{text.rstrip()}\n\n{block}\n"  # type: ignore[misc]
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text.encode())


def relative(target: Path, page: Path) -> str:
    """A link from the page to a file."""
    return Path(os.path.relpath(target, page.parent)).as_posix()
