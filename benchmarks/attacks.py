"""The cost of hostile clients: ``python -m benchmarks.attacks run``, then ``python -m benchmarks.attacks page``.

The package's own digits, shrunk to 14×14, a small network, 20 clients and five a round, so that a cell takes
about a second of one core. Two clean rounds, then four with hostile clients; the accuracy is the mean of the last two.
Until a hostile client is sampled a run equals the clean one, which is run once for all attacks. A finished cell is
a line of the CSV and is not run again, so the benchmark can be stopped and resumed at any time.
"""

import argparse
import csv
import gzip
import math
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import torch
from benchmarks.attack_crafts import MODELS, SUMS, Attack, HostileFleet, Said, absent, backdoor_success
from benchmarks.private_sums import Unmasked
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fedfew.config.parts import Parts, assemble, network_of, sites_of
from fedfew.config.schema import load
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.types import ServerState
from fedfew.data.clients import Origin
from fedfew.data.samples import Vectors
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.runs.session import one_thread
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds
from fedfew.runtime.site import Sites

RESULTS = Path(__file__).with_name("results") / "attacks.csv.gz"
CLIENTS, CLEAN, ATTACKED, SCORED = 20, 2, 4, 2
"""Clients, rounds without and with hostile ones, and the number of last rounds whose accuracy counts."""
SHARED: dict[str, Any] = {
    "clients": CLIENTS, "participation": 0.25, "labels": 50, "rounds": CLEAN + ATTACKED, "fleet.kind": "inline",
    "dataset.test": 1500, "dataset.validation": 50, "dataset.unlabeled": 1000, "model.width": 8,
}  # fmt: skip
_WARM = {"method.warmup": 60, "server.epochs": 5}
_MIXED = {"server.augment": "none", "method.views": 3, "client.batch": 16, "client.epochs": 1}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedmix": ("quick", _MIXED),
    "fedfew": ("fedfew", _WARM | {"client.epochs": 1}),
    "fedmatch": ("fedmatch", _WARM),
    "semifl": ("semifl", _WARM),
    "fedmoments": ("few-labels", {"participation": 1.0, "method.survey": 1000}),
}
"""The preset of each method, and settings that make it quick."""
SECURE = "secure sums"
"""No defence: the server sees the sum only, and refuses it whole if it ruins the model."""
OFF = {"gate.clip": 0.0, "gate.max_harm": 0.0}
DEFENCES: dict[str, dict[str, Any]] = {
    "default": {},
    "none": OFF,
    "fedfreq": OFF | {"aggregator.name": "fedfreq"},
    "median": OFF | {"aggregator.name": "median"},
    "trimmed-mean": OFF | {"aggregator.name": "trimmed-mean"},
    "krum": OFF | {"aggregator.name": "krum", "aggregator.faulty": 1, "aggregator.select": 3},
    "fltrust": OFF | {"aggregator.name": "fltrust"},
    "fltrust, short stays": OFF | {"aggregator.name": "fltrust", "aggregator.stretch": False},
    SECURE: {"privacy.sums": "secure"},
}
"""Default settings; a method's usual aggregator without a screen; and other defences, also alone."""


NAMES = list(MODELS | SUMS)
SPREAD = 0.8
"""Spread of the class means of synthetic features, in units of their noise."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    defence: str
    attack: str
    hostile: int
    mu: float
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(str(value) for value in asdict(self).values())


def small(images: Tensor) -> Tensor:
    """28×28 digits as 14×14."""
    return avg_pool2d(images.float(), 2).round().to(torch.uint8)


def features(labels: Tensor, seed: int, part: int) -> Tensor:
    """Synthetic features N×1×32 of one length, like those of a frozen backbone: classes that overlap."""
    means = torch.randn(10, 32, generator=torch.Generator().manual_seed(seed)) * SPREAD
    noise = torch.randn(len(labels), 32, generator=torch.Generator().manual_seed(1000 * seed + part + 1))
    x = means[labels] + noise
    built: Tensor = (LENGTH * x / x.norm(dim=1, keepdim=True))[:, None].half()
    return built


NOBODY: frozenset[int] = frozenset()
Played = list[tuple[ServerState, RoundRecord]]


@lru_cache(maxsize=1)
def world(method: str, mu: float, seed: int) -> tuple[Parts, Sites, ServerState]:
    """A federation after its clean rounds; the sums of fedmoments are attacked from the start."""
    preset, own = METHODS[method]
    digits = {"dataset.name": "mini-mnist", "partition.mu": mu, "seed": seed, "dataset.seed": seed}
    moments = method == "fedmoments"
    parts = assemble(load("server-only", SHARED | digits) if moments else load(preset, SHARED | own | digits))
    federation = parts.federation
    held = {"server": federation.server, "validation": federation.validation, "test": federation.test}
    held["samples"] = LabeledSet(federation.samples, federation.truth)
    built: dict[str, Samples] = {
        name: Vectors(features(part.labels, seed, i)) if moments else part.samples.like(small(part.samples.data))
        for i, (name, part) in enumerate(held.items())
    }
    about = dict(federation.about) | {"shape": [1, 14, 14]}
    federation = federation.with_sets(built)
    if moments:
        shared = {key: value for key, value in SHARED.items() if not key.startswith("model.")}
        config = load(preset, shared | own | {"partition.mu": mu, "seed": seed})
        federation = replace(federation, origin=Origin(about, "", {}))
        parts = replace(parts, config=config, network=network_of(config, federation))
        clients = replace(parts.clients, cohort=CLIENTS, gate=config.gate, transforms=config.transforms)
        parts = replace(parts, clients=clients)
    site = replace(parts.server, labeled=federation.server, network=parts.network)
    parts = replace(parts, federation=federation, server=site)
    sites = sites_of(parts.config, federation, parts.network)
    start = parts.algorithm.start(parts.network.snapshot())
    return parts, sites, start if moments else play(parts, sites, start, CLEAN, {})[-1][0]


@lru_cache(maxsize=1)
def unharmed(method: str, defence: str, mu: float, seed: int) -> tuple[Parts, Sites, ServerState, Played, Said]:
    """The same with a defence: its rounds without any attack, and the clients' replies in them."""
    parts, sites, state = world(method, mu, seed)
    settings = DEFENCES[defence]
    if settings:
        config = load(parts.config.document, settings)
        exchange = Unmasked.of(config) if defence == SECURE else None
        clients = replace(parts.clients, gate=config.gate, transforms=config.transforms, exchange=exchange)
        parts = replace(parts, config=config, clients=clients)
        sites = replace(sites, algorithm=parts.algorithm, transforms=config.transforms)
    output: Said = {}
    return parts, sites, state, play(parts, sites, state, CLEAN + ATTACKED, output), output


def play(
    parts: Parts,
    sites: Sites,
    state: ServerState,
    rounds: int,
    output: Said,
    attack: Attack = absent,
    hostile: Set[int] = NOBODY,
) -> Played:
    """Run rounds from a state on."""
    sites.memory.clear()
    fleet = HostileFleet(sites, attack, frozenset(hostile), output)
    with one_thread():
        return list(run_rounds(parts.clients, parts.algorithm, parts.server, fleet, state, rounds, 100))


def chosen(hostile: int, cohorts: Sequence[Sequence[int]]) -> set[int]:
    """The first clients; a single one is the client that is sampled most often."""
    asked = Counter(k for cohort in cohorts for k in cohort)
    return {max(range(CLIENTS), key=asked.__getitem__)} if hostile == 1 else set(range(hostile))


def measure(cell: Cell) -> dict[str, Any]:
    """Run a cell."""
    begun = process_time()
    parts, sites, state, played, output = unharmed(cell.method, cell.defence, cell.mu, cell.seed)
    cohorts = [record["cohort"] for _, record in played]
    bad = chosen(cell.hostile, cohorts)
    if cell.hostile:
        same = next((i for i, cohort in enumerate(cohorts) if bad & set(cohort)), len(cohorts))
        state = played[same - 1][0] if same else state
        attack = attacks_on(cell.method)[cell.attack]
        played = played[:same] + play(parts, sites, state, CLEAN + ATTACKED, output, attack, bad)
    records = [record for _, record in played]
    asked = [k for record in records for k in record["cohort"]]
    refused = [f["client"] for record in records for f in record["rejected"] if f["code"] != "E410"]
    scaled = [update["client"] for record in records for update in record["updates"] if "scaled" in update]
    patch = 0.0 if cell.method == "fedmoments" else backdoor_success(sites, played[-1][0].omega)
    return asdict(cell) | {
        "accuracy": round(100 * sum(r["accuracy"] or 0.0 for r in records[-SCORED:]) / SCORED, 2),
        "backdoor": round(100 * patch, 2),
        "honest": sum(k not in bad for k in asked),
        "honest_refused": sum(k not in bad for k in refused),
        "honest_scaled": sum(k not in bad for k in scaled),
        "attackers": sum(k in bad for k in asked),
        "attackers_refused": sum(k in bad for k in refused),
        "attackers_scaled": sum(k in bad for k in scaled),
        "seconds": round(process_time() - begun, 1),
    }


def attacks_on(method: str) -> dict[str, Attack]:
    """The attacks that fit what its clients send."""
    return SUMS if method == "fedmoments" else MODELS


def possible(cell: Cell) -> bool:
    """Whether the attack and the defence apply to the method."""
    if cell.attack not in ("none", *attacks_on(cell.method)):
        return False
    rules = [name for name in DEFENCES if name.startswith("fltrust")]
    unfit = {"fedmatch": ["median", "trimmed-mean", SECURE, *rules], "fedfew": [SECURE, *rules], "semifl": rules,
             "fedmoments": list(set(DEFENCES) - {"default", "none", "fedfreq", SECURE})}  # fmt: skip
    return cell.defence not in unfit.get(cell.method, [])


def read(path: Path = RESULTS) -> list[dict[str, str]]:
    """The finished cells."""
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    """The requested cells, grouped by what they share."""
    hostile = sorted({round(share * CLIENTS) for share in args.shares})
    for method, mu, seed in product(args.methods, args.mu, range(args.first_seed, args.first_seed + args.seeds)):
        for defence, bad, attack in product(args.defences, hostile, ("none", *args.attacks)):
            cell = Cell(method, defence, attack, bad if attack != "none" else 0, mu, seed)
            if possible(cell):
                yield cell


def run(args: argparse.Namespace) -> None:
    """Run the requested cells that are not finished, within the time limit."""
    end = monotonic() + 60 * args.minutes
    done = {tuple(row[name] for name in Cell.__dataclass_fields__) for row in read(args.csv)}
    for cell in dict.fromkeys(cells(args)):
        if cell.key in done:
            continue
        if monotonic() > end:
            print("time is up; run the command again to continue")
            return
        row = measure(cell)
        fresh = not args.csv.exists()
        with gzip.open(args.csv, "at", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        print(*row.values(), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--csv", type=Path, default=RESULTS, help="finished cells, gzipped")
    actions = parser.add_subparsers(dest="action", required=True)
    runs = actions.add_parser("run", help="run the cells that are not finished yet")
    runs.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    runs.add_argument("--defences", nargs="+", choices=DEFENCES, default=list(DEFENCES))
    runs.add_argument("--attacks", nargs="*", choices=NAMES, default=NAMES)
    runs.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.2, 0.4], help="hostile; 0.05 is one client")
    runs.add_argument("--mu", nargs="+", type=float, default=[0.5], help="skew of the clients' classes")
    runs.add_argument("--seeds", type=int, default=3)
    runs.add_argument("--minutes", type=float, default=math.inf, help="start no cell after this time")
    runs.add_argument("--first-seed", type=int, default=0)
    page = actions.add_parser("page", help="write the figure and the tables of docs/understand/security.md")
    page.add_argument("--page", type=Path, default=Path("docs/understand/security.md"))
    args = parser.parse_args(argv)
    if args.action == "run":
        run(args)
    else:
        from benchmarks.attacks_page import write

        write(read(args.csv), args.page)


if __name__ == "__main__":
    main()
