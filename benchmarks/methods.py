"""Every method beside every other: the same split, start, rounds, server training and local epochs.

    python -m benchmarks.methods digits|cifar-noniid|cifar-iid|cifar-long [--seeds N] [--only NAME,NAME] [--until ROUND]
                                 [--jobs N] [--out DIR] [--page docs/results.md]

- All start from one model, trained on the server's labels alone (one for each seed), so that the first pseudo-labels
  are worth something and no method has more server training than another; then each goes its own way.
- digits: mini-mnist, 50 labels, 20 clients (μ = 0.5). cifar: CIFAR-10 at laptop scale (ResNet-9 of width 16 with
  group norm, 1,000 labels, 11,000 unlabeled images, 100 clients, five a round), μ = 0.1 or IID. cifar-long:
  the leading methods with ten clients a round for forty rounds, where the server trains on strong views.
- A method's own settings are those of its preset; they were not tuned for CIFAR-10. FedMix, which passes an image
  through the network three times as often as the others, has half of the local epochs. ``fedfew −…`` leave one
  ingredient out of our own method.

Runs are kept in --out; the same command goes on with what is missing, --until pauses every run after a round.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from fedfew.aggregators import AGGREGATORS
from fedfew.config.files import presets
from fedfew.config.schema import Config, load, settings_for
from fedfew.interface.batch import run_all
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.runs.run import Run
from fedfew.studies.reproduce_markdown import put
from fedfew.studies.sweep import Cell, index, reached

Overrides = dict[str, Any]
SERVER_ONLY = "server-only"
SEEDS = 10
"""As many are looked for."""


@dataclass(frozen=True)
class Task:
    """A dataset with what all methods share on it."""

    words: str
    shared: Overrides
    warm: Overrides
    settings: str
    own: dict[str, Overrides] = field(default_factory=dict)
    """Settings of a method that only make sense here."""
    arms: tuple[str, ...] = ()
    """The arms that are run if none are named; empty: all."""


_RESNET: Overrides = {
    "dataset.name": "cifar10",
    "dataset.split": "paper",
    "dataset.unlabeled": 11_000,
    "dataset.validation": 500,
    "dataset.normalize": "standard",
    "clients": 100,
    "participation": 0.05,
    "labels": 1000,
    "model.name": "resnet9",
    "model.width": 16,
    "model.norm": "group",
    "rounds": 30,
    "server.epochs": 1,
    "server.batch": 50,
    "server.lr": 0.005,
    "server.momentum": 0.9,
    "server.weight_decay": 0.0005,
    "server.augment": "weak",
    "client.epochs": 2,
    "client.batch": 16,
    "client.lr": 0.02,  # with the presets' momentum of 0.9 even true labels tear the model apart at μ = 0.1
    "client.momentum": 0.0,
}
_ALONE: Overrides = {"rounds": 12, "server.epochs": 5, "server.lr": 0.02, "server.schedule": "cosine"}
_LONG: Overrides = {
    "server.augment": "strong",
    "rounds": 40,
    "participation": 0.1,
    "server.lr": 0.02,
    "server.schedule": "cosine",
    "client.schedule": "cosine",
    "client.weight_decay": 0.0005,
}
_CLASS_MIX: Overrides = {"method.steps": 30, "method.temperature": 2.5, "method.concentration": 1.0}
_OTHERS = (
    "Clients train with plain SGD (η = 0.02, batches of 16); a method's other settings are those of its preset, which "
    "were not tuned for CIFAR-10."
)
_CIFAR = "CIFAR-10 at laptop scale, 1,000 labels, 100 clients, five a round"
TASKS = {
    "digits": Task(
        "mini-mnist, 50 labels, 20 clients (μ = 0.5), five a round",
        {
            "rounds": 15,
            "server.epochs": 10,
            "server.lr": 0.05,
            "server.batch": 10,
            "client.epochs": 2,
            "model.norm": "group",
        },
        {"rounds": 15, "server.epochs": 10},
        "A method's own settings are those of its preset.",
    ),
    "cifar-noniid": Task(
        f"{_CIFAR}, μ = 0.1",
        _RESNET | {"partition.kind": "dirichlet", "partition.mu": 0.1},
        _ALONE,
        f"{_OTHERS} `fedfew` has T = 2.5, 30 EM steps and a mean over rounds of 0.8, found by the trials above.",
        {"fedfew": _CLASS_MIX | {"method.average": 0.8}},
    ),
    "cifar-iid": Task(
        f"{_CIFAR}, IID",
        _RESNET | {"partition.kind": "iid"},
        _ALONE,
        f"{_OTHERS} `fedfew` has no EM steps, because clients are alike, and a mean over rounds of 0.8.",
        {"fedfew": {"method.steps": 0, "method.average": 0.8}},
    ),
    "cifar-long": Task(
        "CIFAR-10 at laptop scale, 1,000 labels, 100 clients, ten a round, μ = 0.1, in the long run",
        _RESNET | {"partition.kind": "dirichlet", "partition.mu": 0.1} | _LONG,
        {"rounds": 7, "server.epochs": 5, "server.schedule": "constant", "server.augment": "weak"},
        f"{_OTHERS} `fedfew` trains on the probabilities of all images (soft, τ = 0) with momentum 0.9, which its loss "
        "can bear; 30 EM steps, a temperature found from the validation accuracy, a mean over rounds of 0.8. The start "
        "is 35 epochs on weak views; from there on the server trains on strong ones, the best recipe found for it "
        "alone. `fedfew − clients` is the server alone with the mean over rounds.",
        {
            "fedfew": _CLASS_MIX
            | {
                "method.temperature": 0.0,
                "method.soft": True,
                "method.threshold": 0.0,
                "method.average": 0.8,
                "client.momentum": 0.9,
            }
        },
        (SERVER_ONLY, "all-labels", "fedfew", "fedfew − clients", "semifl", "fl2", "fedmatch", "fedmix + fedfreq"),
    ),
}
_FEDMIX: Overrides = {"method.name": "fedmix", "method.lambda_anchor": 0.01, "client.momentum": 0.0, "client.epochs": 1}
ARMS: dict[str, tuple[str, Overrides]] = {
    SERVER_ONLY: ("server-only", {}),
    "all-labels": ("all-labels", {}),
    "fedfew": ("fedfew", {}),
    "fedmix + fedfreq": ("server-only", _FEDMIX | {"aggregator.name": "fedfreq"}),
    "fedmix + fedavg": ("server-only", _FEDMIX | {"aggregator.name": "fedavg"}),
}
COMBINED = ("rc-ssfl", "label-shift")
"""Published methods that are presets of parts."""
ARMS |= {
    name: (name, {})
    for name in (*METHODS, *OBJECTIVES, *AGGREGATORS, *COMBINED)
    if name in presets() and name not in (*ARMS, "fedavg")  # whose preset is pseudo-label with another name
}
ABLATION: dict[str, tuple[str, Overrides]] = {
    "fedfew − clients": ("fedfew", {"client.epochs": 0, "method.views": 1}),
    "fedfew − class mix in the vote": ("fedfew", {"method.steps": 0}),
    "fedfew − class mix in the loss": ("fedfew", {"method.correction": 0.0}),
    "fedfew − mean over rounds": ("fedfew", {"method.average": 0.0}),
    "fedfew − small batches": ("fedfew", {"client.batch": 64}),
    "fedfew − threshold": ("fedfew", {"method.threshold": 0.0}),
}


def config_of(task: Task, preset: str, own: Overrides, seed: int, start: str) -> Config:
    """The preset with what all share; a method that trains the server before the first round does not need to here."""
    shared = task.shared | {"seed": seed, "dataset.seed": seed, "start": start}
    kind = own.get("method.name") or load(preset)["method.name"]
    if "warmup" in settings_for("method", kind):
        shared["method.warmup"] = 0
    if kind == "ds-fl" and task.shared.get("dataset.name") == "cifar10":
        shared["dataset.open"] = 1000
    return load(preset, shared | task.own.get(kind, {}) | own)


def warm_cell(task: Task, seed: int) -> Cell:
    """The server alone, where all start from."""
    own = task.shared | task.warm | {"seed": seed, "dataset.seed": seed}
    return Cell(f"start-s{seed}", load(SERVER_ONLY, own))


def run(task: Task, names: Sequence[str], seeds: int, folder: Path, jobs: int, until: int) -> None:
    """What is missing of the starts, then of the arms."""
    command = shlex.join(["python", "-m", "benchmarks.methods", *sys.argv[1:]])
    tally = run_all([warm_cell(task, seed) for seed in range(seeds)], folder, jobs=jobs, command=command)
    if tally.failed or tally.busy:
        raise SystemExit("a start failed, or is being made by another process")
    known = index(folder)
    cells = [
        cell_of(task, name, seed, known[warm_cell(task, seed).identity]) for seed in range(seeds) for name in names
    ]
    run_all(cells, folder, jobs=jobs, until=until, command=command)


def cell_of(task: Task, name: str, seed: int, start: Path) -> Cell:
    """One run of an arm."""
    config = config_of(task, *(ARMS | ABLATION)[name], seed, str(start.absolute()))
    return Cell(f"{'-'.join(name.split())}-s{seed}", config)


def runs_of(task: Task, folder: Path) -> Iterator[tuple[str, Run]]:
    """The runs that are there, by arm."""
    known, told = index(folder), set[str]()
    for name in ARMS | ABLATION:
        for seed, start in starts(task, known).items():
            identity = cell_of(task, name, seed, start).identity
            if identity in known and identity not in told and reached(known[identity]):
                told.add(identity)  # where a task does without an ingredient, leaving it out changes nothing
                yield name, Run.open(known[identity])


def starts(task: Task, known: Mapping[str, Path]) -> dict[int, Path]:
    """The finished starts by seed."""
    wanted = {seed: warm_cell(task, seed).identity for seed in range(SEEDS)}
    return {seed: known[identity] for seed, identity in wanted.items() if identity in known}


def section(key: str, folder: Path, levels: Sequence[int]) -> str:
    """A table for every round in ``levels``, over the runs that have come that far."""
    task = TASKS[key]
    found: dict[str, list[Run]] = {}
    for name, run in runs_of(task, folder):
        found.setdefault(name, []).append(run)
    begun = [Run.open(path) for path in starts(task, index(folder)).values()]
    reached_alone = [o.accuracy("last") or 0.0 for o in begun]
    around = begun[0].environment["fingerprint"]
    minutes = sum(o.seconds for runs in found.values() for o in runs) / 60
    of = task.shared["rounds"]
    facts = [
        f"`python -m benchmarks.methods {key}` · torch {around['torch']}, one thread a run on an "
        f"{around['processor']} · {minutes:.0f} minutes for all runs.",
        f"All start from the server's model, trained on its labels alone ({_percent(reached_alone)}), and have the "
        "same split, rounds and server training, and the same local epochs but for FedMix, which passes an image "
        "through the network three times as often as the others and has half of them.",
        task.settings,
        "Accuracy: mean of the last five rounds on 2,000 test images (digits: 1,500), ± standard deviation over seeds. "
        "*Up* and *down*: mean bytes of a round; *s*: median seconds of a round, while other runs shared the machine.",
    ]
    if max(levels) < of:
        facts.append(f"The runs are to have {of} rounds and were cut at those stated.")
    return (
        f"## {'Leading' if task.arms else 'All'} methods: {task.words}\n\n"
        + "\n".join([*facts, ""])
        + "".join(f"\n{table(found, level)}\n" for level in levels)
    )


def table(found: dict[str, list[Run]], upto: int) -> str:
    """All arms that have come as far as ``upto`` rounds, read there."""
    rows = []
    base = {o.seeds: accuracy(o, upto) for o in found.get(SERVER_ONLY, []) if o.done >= upto}
    for name, runs in found.items():
        far = [o for o in runs if o.done >= upto]
        if not far:
            continue
        values = [accuracy(o, upto) for o in far]
        gains = [accuracy(o, upto) - base[o.seeds] for o in far if o.seeds in base]
        last, done = [o.records[upto - 1] for o in far], [record for o in far for record in o.records[:upto]]
        gain = "" if name == SERVER_ONLY or not gains else f"{100 * mean(gains):+.1f}{_spread(gains)}"
        rows.append((
            -mean(values),
            f"| {name} | {_percent(values)} | {gain} | {len(far)} | {_share(last, 'coverage')} | "
            f"{_share(last, 'correct')} | {_bytes(done, 'bytes_up')} | {_bytes(done, 'bytes_down')} | "
            f"{median(sum(record['seconds'].values()) for record in done):.1f} |",
        ))  # fmt: skip
    body = "\n".join(row for _, row in sorted(rows))
    columns = f"after {upto} rounds | accuracy | against server-only | seeds | labeled | of these right | up | down | s"
    return f"| {columns} |\n|---|---|---|---|---|---|---|---|---|\n{body}"


def accuracy(run: Run, upto: int) -> float:
    """The mean of the last five rounds up to ``upto``: a single round is a draw of five clients."""
    tail = [r["accuracy"] or 0.0 for r in run.records[max(upto - 5, 0) : upto]]
    return float(mean(tail))


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
    parser.add_argument("--ablation", action="store_true", help="our own method with one ingredient left out, only")
    parser.add_argument("--until", type=int, default=0, metavar="ROUND")
    parser.add_argument("--at", metavar="ROUND,ROUND", help="rounds to make tables for")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time, a process each")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--page", type=Path, help="write the table into this page instead of running")
    given = parser.parse_args()
    task, folder = TASKS[given.task], given.out / given.task
    names = given.only.split(",") if given.only else list(ABLATION if given.ablation else task.arms or ARMS)
    unknown = [name for name in names if name not in ARMS | ABLATION]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(ARMS | ABLATION)}")
    levels = [int(level) for level in given.at.split(",")] if given.at else [given.until or task.shared["rounds"]]
    if given.page:
        put(given.page, {f"methods-{given.task}": section(given.task, folder, levels)})
    else:
        run(task, names, given.seeds, folder, given.jobs, given.until)
        print(section(given.task, folder, levels))


if __name__ == "__main__":
    main()
