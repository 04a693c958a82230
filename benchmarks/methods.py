"""Compares all methods: the same split, start, rounds, server training and local epochs.

    python -m benchmarks.methods digits|cifar-noniid|cifar-iid|cifar-long [--seeds N] [--only NAME,NAME] [--until ROUND]
                                 [--jobs N] [--out DIR] [--page docs/understand/results.md] [--keep FILE.jsonl.xz]

- All start from one model, trained on the server's labels alone (one for each seed), so that the first pseudo-labels
  are useful and no method has more server training than another.
- digits: mini-mnist, 50 labels, 20 clients (μ = 0.5). cifar: CIFAR-10 at laptop scale (ResNet-9 of width 16 with
  group norm, 1,000 labels, 11,000 unlabeled images, 100 clients, five a round), μ = 0.1 or IID. cifar-long:
  the leading methods with ten clients a round for forty rounds.
- One table, one setting (``benchmarks/method_tasks.py``): an arm that needs another one is in a separate table,
  with what differs and without a difference to server-only. The server's recipe and each arm's client step are what a
  search found on validation images, with the same trials for all (``benchmarks/method_search.py``).
  ``fedfew −…`` leave one ingredient out of our own method.

Runs are saved in --out; the same command continues with what is missing, --until pauses every run after a round.
--keep writes the records of these runs into an archive; with --out FILE.jsonl.xz, --page makes the table from it.
"""

import argparse
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.method_search import best, last_five, rows
from benchmarks.method_tasks import (
    ABLATION,
    ARMS,
    FOUND,
    SERVER_ONLY,
    TASKS,
    Task,
    config_of,
    note_on,
    other_setting,
    warm_cell,
)
from paper.measures import IMAGES, gain_cell, sampling
from paper.page import put
from paper.study import slim

from fedfew.interface.batch import run_all
from fedfew.runs.collection import is_archive, read_all, write_archive
from fedfew.runs.intervals import Interval
from fedfew.runs.run import TITLES, Run
from fedfew.studies.sweep import Cell, identity, index

SEEDS = 10
"""The number of seeds to look for."""


def run(task: Task, names: Sequence[str], seeds: int, folder: Path, jobs: int, until: int) -> None:
    """Run the missing starts, then the missing arms."""
    command = shlex.join(["python", "-m", "benchmarks.methods", *sys.argv[1:]])
    tally = run_all([warm_cell(task, seed) for seed in range(seeds)], folder, jobs=jobs, command=command)
    if tally.failed or tally.paths("busy"):
        raise SystemExit("a start failed, or is being made by another process")
    known = index(folder)
    cells = [
        cell_of(task, name, seed, known[warm_cell(task, seed).identity]) for seed in range(seeds) for name in names
    ]
    run_all(cells, folder, jobs=jobs, until=until, command=command)


def cell_of(task: Task, name: str, seed: int, start: Path) -> Cell:
    """One run of an arm."""
    config = config_of(task, name, seed, str(start.absolute()))
    return Cell(f"{'-'.join(name.split())}-s{seed}", config)


def known_runs(where: Path) -> dict[str, Run]:
    """The runs of a folder or an archive by experiment; of several the finished one."""
    return {experiment(run.document): run for run in sorted(read_all(where)[0], key=lambda run: run.finished)}


def experiment(document: Mapping[str, Any]) -> str:
    """What makes two runs the same one; a start counts by its name, wherever its folder is."""
    return identity({**document, "start": Path(document["start"]).name})


def runs_of(task: Task, known: Mapping[str, Run]) -> Iterator[tuple[str, Run]]:
    """The existing runs, by arm."""
    told = set[str]()
    begun = starts(task, known)
    for name in ARMS | ABLATION:
        for seed, start in begun.items():
            one = experiment(cell_of(task, name, seed, start.path).config.document)
            if one in known and one not in told and known[one].done:
                told.add(one)  # if a task lacks an ingredient anyway, leaving it out changes nothing
                yield name, known[one]


def starts(task: Task, known: Mapping[str, Run]) -> dict[int, Run]:
    """The finished starts by seed."""
    wanted = {seed: experiment(warm_cell(task, seed).config.document) for seed in range(SEEDS)}
    return {seed: known[one] for seed, one in wanted.items() if one in known}


def keep(task: Task, folder: Path, target: Path) -> None:
    """Write the records of the finished runs into an archive, without paths of this machine."""
    known = known_runs(folder)
    runs = [*starts(task, known).values(), *(run for _, run in runs_of(task, known))]
    command = f"python -m benchmarks.methods {task.key}"
    kept = {
        run.name: run.with_(
            document={**run.document, "start": Path(run.document["start"]).name},
            environment={**run.environment, "command": command},
            records=slim(run).records,
        )
        for run in runs
        if run.finished
    }
    target.unlink(missing_ok=True)
    write_archive(target, kept)


def section(key: str, folder: Path, levels: Sequence[int]) -> str:
    """A table for every round in ``levels``, over the runs that have reached it."""
    task, known = TASKS[key], known_runs(folder)
    result: dict[str, list[Run]] = {}
    for name, run in runs_of(task, known):
        result.setdefault(name, []).append(run)
    if not result:
        raise SystemExit(f"{folder}: no run of an arm has finished a round yet")
    seeds = {run.seed for runs in result.values() for run in runs}
    begun = [run for seed, run in starts(task, known).items() if seed in seeds]
    reached_alone = [o.accuracy("last") or 0.0 for o in begun]
    fingerprint = begun[0].environment["fingerprint"]
    minutes = sum(o.seconds for runs in result.values() for o in runs) / 60
    of = task.shared["rounds"]
    facts = [
        f"`python -m benchmarks.methods {key} --seeds {len(begun)}` · torch {fingerprint['torch']}, one thread a run "
        f"on an {fingerprint['processor']} · {minutes:.0f} minutes for all runs.",
        f"All start from the server's model, trained on its labels alone ({_percent(reached_alone)}), and have the "
        "same split, cohort, rounds, local epochs, normalisation and server training. " + searched(task),
        task.settings,
        "Accuracy: mean of the last five rounds on 2,000 test images (digits: 1,500), ± standard deviation over seeds; "
        "differences are paired by seed and judged by Student's t. "
        "*Up* and *down*: mean bytes of a round; *s*: median seconds of a round, while other runs shared the machine.",
    ]
    parallel = [name for name in result if "warmup" not in config_of(task, name, 0, "").document["method"]]
    if parallel:
        facts.append(
            f"The server trains beside the clients in {', '.join(parallel)}: one server turn less than the others."
        )
    if max(levels) < of:
        facts.append(f"The runs were planned for {of} rounds and stopped after those stated.")
    separate = {name: differs for name in result if (differs := other_setting(task, name))}
    tables = [table({name: runs for name, runs in result.items() if name not in separate}, level) for level in levels]
    if separate:
        tables.append("With another setting than the table's (in brackets), so without a difference to it:")
        tables.append("\n".join(note_on(name, differs) for name, differs in separate.items()))
        tables += [table({name: result[name] for name in separate}, level) for level in levels]
    return (
        f"## {'Leading' if task.arms else 'All'} methods: {task.words}\n\n"
        + "\n".join([*facts, ""])
        + "".join(f"\n{text}\n" for text in tables)
    )


def searched(task: Task) -> str:
    """A description of the search behind the table, in a sentence or two."""
    tried = rows(FOUND / f"{task.key}.csv")
    if not tried:
        return "Nothing was searched: the recipes are those of the presets."
    trials = {arm: sum(row["arm"] == arm for row in tried) for arm in dict.fromkeys(row["arm"] for row in tried)}
    recipe = ", ".join(f"{key} = {value}" for key, value in best(FOUND / f"{task.key}.csv", SERVER_ONLY).items())
    others = sorted({count for arm, count in trials.items() if arm != SERVER_ONLY})
    more = (
        f" The clients' step size is the best of {'–'.join(map(str, others))} on that split, for each of "
        f"{len(trials) - 1} arms." if others
        else " Nothing was searched for the clients: every arm has the table's step size."
    )  # fmt: skip
    return (
        f"The server's recipe ({recipe}) is the best of {trials.get(SERVER_ONLY, 0)} different trials of server-only "
        f"training, judged on validation images of another split.{more}"
    )


def table(result: dict[str, list[Run]], upto: int) -> str:
    """All arms that have reached ``upto`` rounds, read there."""
    rows = []
    base = {o.seeds: last_five(o, "accuracy", upto) for o in result.get(SERVER_ONLY, []) if o.done >= upto}
    for name, runs in result.items():
        far = [o for o in runs if o.done >= upto]
        if not far:
            continue
        values = [last_five(o, "accuracy", upto) for o in far]
        pairs = [(last_five(o, "accuracy", upto), base[o.seeds]) for o in far if o.seeds in base]
        last, done = [o.records[upto - 1] for o in far], [record for o in far for record in o.records[:upto]]
        gain = (
            ""
            if name == SERVER_ONLY or not pairs
            else gain_cell(_gain(pairs, far[0].evaluation.get("images") or IMAGES))
        )
        rows.append((
            -mean(values),
            f"| {TITLES.get(name, name)} | {_percent(values)} | {gain} | {len(far)} | {_share(last, 'coverage')} | "
            f"{_share(last, 'correct')} | {_bytes(done, 'bytes_up')} | {_bytes(done, 'bytes_down')} | "
            f"{median(sum(record['seconds'].values()) for record in done):.1f} |",
        ))  # fmt: skip
    body = "\n".join(row for _, row in sorted(rows))
    columns = f"after {upto} rounds | accuracy | against server-only | seeds | labeled | of these right | up | down | s"
    return f"| {columns} |\n|---|---|---|---|---|---|---|---|---|\n{body}"


def _gain(pairs: Sequence[tuple[float, float]], images: int) -> Interval:
    """The mean difference of accuracies, paired by seed; its error is at least that of so many test images."""
    each = math.hypot(*(sampling(mean(side), images) for side in zip(*pairs, strict=True)))
    return Interval.of([own - base for own, base in pairs], each)


def _spread(values: Sequence[float]) -> str:
    return f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""


def _percent(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f}{_spread(values)} %" if values else "–"


def _share(records: Sequence[Mapping[str, Any]], key: str) -> str:
    known = [r[key] for r in records if r[key] is not None]
    return f"{100 * mean(known):.0f} %" if known else "–"


def _bytes(records: Sequence[Mapping[str, Any]], key: str) -> str:
    size = mean(r[key] for r in records)
    return f"{size / 1e6:.2f} MB" if size >= 1e4 else ("–" if not size else f"{size / 1e3:.1f} kB")


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", help=f"of: {', '.join(ARMS | ABLATION)}")
    parser.add_argument("--ablation", action="store_true", help="only our own method with one ingredient left out")
    parser.add_argument("--until", type=int, default=0, metavar="ROUND")
    parser.add_argument("--at", metavar="ROUND,ROUND", help="rounds to make tables for")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time, one process each")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--page", type=Path, help="write the table into this page instead of running")
    parser.add_argument("--keep", type=Path, metavar="FILE.jsonl.xz", help="write the runs' records into this archive")
    options = parser.parse_args()
    task = TASKS[options.task]
    folder = options.out if is_archive(options.out) else options.out / options.task
    names = options.only.split(",") if options.only else list(ABLATION if options.ablation else task.arms or ARMS)
    unknown = [name for name in names if name not in ARMS | ABLATION]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(ARMS | ABLATION)}")
    levels = [int(level) for level in options.at.split(",")] if options.at else [options.until or task.shared["rounds"]]
    if options.keep:
        keep(task, folder, options.keep)
    elif options.page:
        put(options.page, {f"methods-{options.task}": section(options.task, folder, levels)})
    else:
        run(task, names, options.seeds, folder, options.jobs, options.until)
        print(section(options.task, folder, levels))


if __name__ == "__main__":
    main()
